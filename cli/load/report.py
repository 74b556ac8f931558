"""The result of a run, as a table for people and as one JSON object for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cli.load.record import MeasuredRequest
from cli.load.statistics import LatencyLimits, LoadSummary, Percentiles
from cli.load.verdict import MOST_REQUESTS, Assumptions, Forecast, Verdict

COLUMNS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class LoadReport:
    url: str
    model: str
    endpoint: str
    load: str  # shape or trace and schedule, in words
    seed: int
    summary: LoadSummary
    limits: LatencyLimits
    examples: dict[str, str]  # kind of error -> what the server said in one case
    notes: tuple[str, ...]
    late: tuple[str, ...]  # why the generator makes the result doubtful
    loop_delay_p99_seconds: float
    interrupted: bool
    assumptions: Assumptions | None
    assumed_from: str  # where the assumed speeds come from
    verdict: Verdict | None  # None: nothing to judge by


def examples_of(records: Sequence[MeasuredRequest]) -> dict[str, str]:
    """The first detail of each kind of error."""
    found: dict[str, str] = {}
    for record in records:
        if record.error and record.detail:
            found.setdefault(record.error, record.detail)
    return found


def usage_notes(records: Sequence[MeasuredRequest], *, shared_prefixes: bool = False) -> list[str]:
    """Remarks about answers that are not what the figures take for granted.

    `shared_prefixes`: prompts of this load have equal beginnings by plan."""
    finished = [record for record in records if record.finished]
    notes = list[str]()
    silent = sum(each.completion_tokens is None for each in finished)
    if silent:
        notes.append(
            f"{silent} of {len(finished)} answers came without usage: they count neither in tokens per second nor in "
            "TPOT."
        )
    counted = [(each.prompt_tokens or 0) - each.input_tokens for each in finished if each.prompt_tokens is not None]
    if off := [difference for difference in counted if difference]:
        notes.append(f"{len(off)} of {len(counted)} prompts differ from their planned length, by {_span(off)} tokens.")
    shorter = [
        each.output_tokens - each.completion_tokens
        for each in finished
        if each.completion_tokens is not None and each.completion_tokens < each.output_tokens
    ]
    if shorter:
        notes.append(f"{len(shorter)} of {len(finished)} answers are shorter than planned, by {_span(shorter)} tokens.")
    if textless := sum(not each.chunks for each in finished):
        notes.append(f"{textless} answers held no text: their TTFT counts to their end.")
    cached = sum(each.cached_tokens or 0 for each in finished)
    if cached:
        total = sum(each.prompt_tokens or 0 for each in finished)
        hint = "" if shared_prefixes else " Equal seeds send equal prompts: give each repetition another --seed."
        notes.append(f"{cached} of {total} prompt tokens came from the server's prefix cache.{hint}")
    return notes


def lines(report: LoadReport, *, verbose: bool) -> list[str]:
    summary = report.summary
    counts = [f"{summary.finished} finished", f"{summary.failed} failed"]
    if summary.unfinished:
        counts.append(f"{summary.unfinished} unfinished")
    shown = [
        f"{report.model} at {report.url} ({report.endpoint}), {report.load}",
        "",
        f"requests   {', '.join(counts)} in {summary.seconds:.1f} s; {summary.requests_per_second:.2f} requests/s",
        f"tokens     {_rate(summary.input_tokens_per_second)} in, {_rate(summary.output_tokens_per_second)} out",
        f"           {''.join(f'{name:>12}' for name in COLUMNS)}",
        *(
            _row(name, values)
            for name, values in (
                ("TTFT", summary.ttft),
                ("TPOT", summary.tpot),
                ("ITL", summary.itl),
                ("E2E", summary.e2e),
            )
        ),
        f"goodput    {summary.good_per_second:.2f} requests/s, {summary.good_share:.1%} of the requests, "
        f"{_limits(report.limits)}",
        f"generator  began requests {summary.lateness_p99_seconds * 1000:.1f} ms late (p99); event loop delay "
        f"{report.loop_delay_p99_seconds * 1000:.1f} ms (p99)",
    ]
    for kind, count in summary.errors.items():
        example = report.examples.get(kind)
        shown.append(f"error      {count} × {kind}{f': {example}' if example else ''}")
    shown += [f"note       {note}" for note in report.notes]
    if report.interrupted:
        shown.append("note       Interrupted: the figures are those of the requests that had ended.")
    if report.late:
        shown.append(
            f"DOUBTFUL   The load generator did not keep up: {'; '.join(report.late)}. Give it a machine of its own."
        )
    if report.verdict is not None:
        shown += ["", report.verdict.sentence]
    if verbose and report.assumptions is not None:
        shown += [f"assumed    {text}" for text in _assumed(report.assumptions, report.assumed_from)]
    return shown


def as_json(report: LoadReport) -> dict[str, Any]:
    summary = report.summary
    return {
        "url": report.url,
        "model": report.model,
        "endpoint": report.endpoint,
        "load": report.load,
        "seed": report.seed,
        "interrupted": report.interrupted,
        "requests": {"finished": summary.finished, "failed": summary.failed, "unfinished": summary.unfinished},
        "errors": summary.errors,
        "seconds": summary.seconds,
        "ttft": _milliseconds(summary.ttft),
        "tpot": _milliseconds(summary.tpot),
        "itl": _milliseconds(summary.itl),
        "e2e": _milliseconds(summary.e2e),
        "requests_per_second": summary.requests_per_second,
        "input_tokens_per_second": summary.input_tokens_per_second,
        "output_tokens_per_second": summary.output_tokens_per_second,
        "goodput": {
            "requests": summary.good,
            "requests_per_second": summary.good_per_second,
            "share": summary.good_share,
            "limits_ms": {name: _ms(value) for name, value in asdict(report.limits).items()},
        },
        "generator": {
            "late": bool(report.late),
            "reasons": list(report.late),
            "lateness_p99_ms": _ms(summary.lateness_p99_seconds),
            "loop_delay_p99_ms": _ms(report.loop_delay_p99_seconds),
        },
        "notes": list(report.notes),
        "split": _split(report),
    }


def _split(report: LoadReport) -> dict[str, Any] | None:
    verdict, assumed = report.verdict, report.assumptions
    if verdict is None or assumed is None:
        return None
    return {
        "worth": verdict.worth,
        "reason": verdict.reason.value,
        "sentence": verdict.sentence,
        "assumptions": _assumed(assumed, report.assumed_from),
        "assumed": asdict(assumed),
        "colocated": _forecast(verdict.colocated),
        "split": None if verdict.split is None else _forecast(verdict.split),
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    return asdict(forecast)


def _assumed(assumed: Assumptions, source: str) -> list[str]:
    speeds = assumed.speeds
    return [
        f"one worker prefills {speeds.prefill_tokens_per_second:,.0f} tokens/s after "
        f"{speeds.prompt_seconds * 1000:.2f} ms per prompt, and decodes in steps of {speeds.step_seconds * 1000:.2f} "
        f"ms plus {speeds.row_seconds * 1000:.3f} ms for each further answer ({source})",
        f"{assumed.workers} equal workers in both arrangements; a worker that does both phases computes at most "
        f"{assumed.chunk_tokens} prompt tokens in a step, beside all its answers",
        f"a hand-off between tiers exposes {assumed.handoff_seconds * 1000:.0f} ms; memory, limits of batches, prefix "
        f"caches and drafts are left out; at most the first {MOST_REQUESTS} requests are simulated",
    ]


def _row(name: str, values: Percentiles | None) -> str:
    if values is None:
        return f"{name:<11}{'none':>12}"
    return f"{name:<11}" + "".join(f"{f'{_ms(getattr(values, column)):,.1f} ms':>12}" for column in COLUMNS)


def _milliseconds(values: Percentiles | None) -> dict[str, Any] | None:
    return None if values is None else {"unit": "ms", **{name: _ms(getattr(values, name)) for name in COLUMNS}}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 4)


def _rate(tokens_per_second: float | None) -> str:
    return "unknown" if tokens_per_second is None else f"{tokens_per_second:,.1f} tokens/s"


def _limits(limits: LatencyLimits) -> str:
    if not limits:
        return "without limits"
    given = [f"{name.upper()} ≤ {value * 1000:g} ms" for name, value in asdict(limits).items() if value is not None]
    return f"within {', '.join(given)}"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
