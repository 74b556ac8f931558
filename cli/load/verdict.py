"""Whether two tiers would serve this load better than the same number of workers that do both phases, and why not.

It compares two simulations (cli/load/estimate.py) under the limits. Without limits it asks whether the 99th percentile
of ITL falls clearly and TTFT does not rise clearly."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cli.load.estimate import ServiceSpeeds, Simulated, simulate_colocated, simulate_split
from cli.load.plan import LoadRequest
from cli.load.statistics import LatencyLimits, percentile

CLEAR_SHARE = 0.05  # share of all requests: a gain is clear where this share more of them meets the limits
CLEAR_RATIO = 1.2  # between two latencies
LITTLE_STRETCH = 0.5  # part of a decode step: a prompt that adds less to a gap does not disturb answers
OVERLOADED_SHARE = 0.5  # where fewer requests meet the limits, workers are missing, not tiers
LOW_LOAD = 0.3  # share of the time in which workers have work
MOST_REQUESTS = 1000  # simulated; a longer trace is cut


class SplitReason(Enum):
    WORTH = "worth it"
    ONE_WORKER = "one worker"
    SHORT_PROMPTS = "prompts too short"
    LOW_LOAD = "load too low"
    PREFILL_BOUND = "prefill-bound"  # the smaller prefill tier makes first tokens late
    DECODE_BOUND = "decode-bound"  # the smaller decode tier makes answers slow
    OVERLOADED = "overloaded"  # neither arrangement meets the limits
    NOT_NEEDED = "limits are met without"  # both arrangements keep them
    NO_GAIN = "no clear gain"


@dataclass(frozen=True, slots=True)
class Assumptions:
    speeds: ServiceSpeeds
    workers: int
    chunk_tokens: int = 512  # prompt tokens in one step of a worker that does both phases, at most
    handoff_seconds: float = 0.005  # exposed time between the first token and the first step at decode


@dataclass(frozen=True, slots=True)
class Forecast:
    """The figures of one simulated arrangement; times are in seconds."""

    prefill_workers: int  # 0: every worker does both phases
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    itl_p99: float
    good_share: float
    good_per_second: float
    busy_share: float
    prefill_share: float  # part of the work that prefill does


@dataclass(frozen=True, slots=True)
class Verdict:
    reason: SplitReason
    sentence: str
    colocated: Forecast
    split: Forecast | None  # the best one; None with one worker

    @property
    def worth(self) -> bool:
        return self.reason is SplitReason.WORTH


def judge_split(requests: Sequence[LoadRequest], assumed: Assumptions, limits: LatencyLimits) -> Verdict:
    """`requests` must have arrival times."""
    requests = sorted(requests, key=lambda each: each.at_seconds or 0.0)[:MOST_REQUESTS]
    together = simulate_colocated(requests, assumed.speeds, workers=assumed.workers, chunk_tokens=assumed.chunk_tokens)
    colocated = _forecast(together, 0, assumed.workers, limits)
    apart = [
        _forecast(
            simulate_split(
                requests,
                assumed.speeds,
                prefill_workers=prefill,
                decode_workers=assumed.workers - prefill,
                handoff_seconds=assumed.handoff_seconds,
            ),
            prefill,
            assumed.workers,
            limits,
        )
        for prefill in range(1, assumed.workers)
    ]
    # By the limits first. Latencies are compared as ratios, since a first token takes many times a gap.
    split = min(
        apart,
        key=lambda each: (-round(each.good_share, 2), each.ttft_p99 / colocated.ttft_p99 + _gap_ratio(each, colocated)),
        default=None,
    )
    lengths = [float(each.input_tokens) for each in requests]
    stretch = assumed.speeds.prefill(min(assumed.chunk_tokens, int(percentile(lengths, 99))))
    reason = decide(colocated, split, stretch_seconds=stretch, step_seconds=assumed.speeds.step_seconds, limits=limits)
    return Verdict(reason, _sentence(reason, colocated, split, assumed, stretch, limits), colocated, split)


def decide(
    colocated: Forecast, split: Forecast | None, *, stretch_seconds: float, step_seconds: float, limits: LatencyLimits
) -> SplitReason:
    """`stretch_seconds`: what a long prompt of this load adds to a gap of the answers beside it."""
    if split is None:
        return SplitReason.ONE_WORKER
    if limits:
        better = split.good_share >= colocated.good_share + CLEAR_SHARE
    else:
        better = split.itl_p99 * CLEAR_RATIO <= colocated.itl_p99 and split.ttft_p99 <= colocated.ttft_p99 * CLEAR_RATIO
    if better:
        return SplitReason.WORTH
    if limits and max(colocated.good_share, split.good_share) < OVERLOADED_SHARE:
        return SplitReason.OVERLOADED
    if stretch_seconds < LITTLE_STRETCH * step_seconds:
        return SplitReason.SHORT_PROMPTS
    if colocated.busy_share < LOW_LOAD:
        return SplitReason.LOW_LOAD
    if limits and min(colocated.good_share, split.good_share) > 1 - CLEAR_SHARE:
        return SplitReason.NOT_NEEDED
    slower = {
        SplitReason.PREFILL_BOUND: split.ttft_p99 / colocated.ttft_p99,
        SplitReason.DECODE_BOUND: split.tpot_p50 / colocated.tpot_p50 if colocated.tpot_p50 else 0.0,
    }
    worst = max(slower, key=lambda each: slower[each])
    return worst if slower[worst] > CLEAR_RATIO else SplitReason.NO_GAIN


def _gap_ratio(split: Forecast, colocated: Forecast) -> float:
    return split.itl_p99 / colocated.itl_p99 if colocated.itl_p99 else 0.0


def _forecast(simulated: Simulated, prefill_workers: int, workers: int, limits: LatencyLimits) -> Forecast:
    requests = simulated.requests
    gaps = [gap for each in requests for gap in each.gaps]
    good = sum(limits.met(each.ttft, each.tpot, each.gaps) for each in requests)
    work = simulated.prefill_seconds + simulated.decode_seconds
    return Forecast(
        prefill_workers=prefill_workers,
        ttft_p50=percentile([each.ttft for each in requests], 50),
        ttft_p99=percentile([each.ttft for each in requests], 99),
        tpot_p50=percentile([each.tpot for each in requests if each.tpot is not None] or [0.0], 50),
        itl_p99=percentile(gaps or [0.0], 99),
        good_share=good / len(requests),
        good_per_second=good / simulated.seconds,
        busy_share=work / (workers * simulated.seconds),
        prefill_share=simulated.prefill_seconds / work,
    )


def _sentence(
    reason: SplitReason,
    colocated: Forecast,
    split: Forecast | None,
    assumed: Assumptions,
    stretch: float,
    limits: LatencyLimits,
) -> str:
    step = assumed.speeds.step_seconds
    if split is None:
        return "A split into tiers is not possible with one worker: each tier needs one."
    tiers = f"{split.prefill_workers} prefill + {assumed.workers - split.prefill_workers} decode"
    figures = (
        f"estimated for {assumed.workers} workers that do both phases against {tiers}: TTFT p99 "
        f"{_ms(colocated.ttft_p99)} against {_ms(split.ttft_p99)}, ITL p99 {_ms(colocated.itl_p99)} against "
        f"{_ms(split.itl_p99)}"
    )
    if limits:
        figures += f", requests within the limits {colocated.good_share:.0%} against {split.good_share:.0%}"
    if reason is SplitReason.WORTH:
        return f"A split into tiers is worth it for this load: {figures}."
    why = {
        SplitReason.SHORT_PROMPTS: f"prompts are too short: beside one, a gap grows by {_ms(stretch)} at most, less "
        f"than half a decode step of {_ms(step)}",
        SplitReason.LOW_LOAD: f"the load is too low: workers have work {colocated.busy_share:.0%} of the time, so "
        "prompts seldom meet answers",
        SplitReason.PREFILL_BOUND: f"it is prefill-bound: prompts are {colocated.prefill_share:.0%} of the work, and "
        "a tier of its own computes them with fewer workers",
        SplitReason.DECODE_BOUND: f"it is decode-bound: answers are {1 - colocated.prefill_share:.0%} of the work, and "
        "a tier of its own computes them with fewer workers",
        SplitReason.OVERLOADED: f"{assumed.workers} workers cannot keep the limits in any arrangement, so more of them "
        "or less load come first",
        SplitReason.NOT_NEEDED: "workers that do both phases keep the limits as well",
        SplitReason.NO_GAIN: "it gains nothing clear",
    }[reason]
    return f"A split into tiers is not worth it for this load: {why} ({figures})."


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms" if value < 10_000 else f"{seconds:.0f} s"
