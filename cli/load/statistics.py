"""Percentiles, rates and goodput of a run, from the records of its requests. Pure functions.

TTFT: from the scheduled time to the first chunk with text. ITL: each gap between two chunks with text. TPOT: from the
first to the last chunk, over the tokens after the first. E2E: from the scheduled time to the end of the answer."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cli.load.record import MeasuredRequest

Values = Sequence[float]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The distribution of one latency, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """A request is good when it meets every limit; None: no limit. Seconds."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None  # for the 99th percentile of the request's own gaps

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.itl))

    def met(self, ttft: float | None, tpot: float | None, gaps: Values) -> bool:
        """Whether a finished request meets the limits. A latency that an answer of one token does not have is met."""
        return not (
            (self.ttft is not None and (ttft is None or ttft > self.ttft))
            or (self.tpot is not None and tpot is not None and tpot > self.tpot)
            or (self.itl is not None and bool(gaps) and percentile(gaps, 99) > self.itl)
        )


@dataclass(frozen=True, slots=True)
class LoadSummary:
    finished: int
    failed: int
    unfinished: int  # under way when the run was interrupted
    errors: dict[str, int]  # by kind
    seconds: float  # from the first scheduled time to the last end
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    requests_per_second: float
    input_tokens_per_second: float | None  # None: no answer came with usage
    output_tokens_per_second: float | None
    good: int
    good_per_second: float
    good_share: float  # good requests as a share of all that ended
    lateness_p99_seconds: float  # how long after its scheduled time the generator began a request


def summarize(records: Sequence[MeasuredRequest], limits: LatencyLimits) -> LoadSummary:
    finished = [record for record in records if record.finished]
    failed = [record for record in records if record.error]
    ended = [record.ended for record in records if record.ended is not None]
    seconds = max(ended) - min(record.scheduled for record in records) if ended else 0.0
    good = sum(limits.met(each.ttft, each.tpot, each.gaps) for each in finished)

    def rate(count: float) -> float:
        return count / seconds if seconds > 0 else 0.0

    inputs = [each.prompt_tokens for each in finished if each.prompt_tokens is not None]
    outputs = [each.completion_tokens for each in finished if each.completion_tokens is not None]
    return LoadSummary(
        finished=len(finished),
        failed=len(failed),
        unfinished=len(records) - len(finished) - len(failed),
        errors=dict(Counter(each.error for each in failed).most_common()),
        seconds=seconds,
        ttft=percentiles([each.ttft for each in finished if each.ttft is not None]),
        tpot=percentiles([each.tpot for each in finished if each.tpot is not None]),
        itl=percentiles([gap for each in finished for gap in each.gaps]),
        e2e=percentiles([each.e2e for each in finished if each.e2e is not None]),
        requests_per_second=rate(len(finished)),
        input_tokens_per_second=rate(sum(inputs)) if inputs else None,
        output_tokens_per_second=rate(sum(outputs)) if outputs else None,
        good=good,
        good_per_second=rate(good),
        good_share=good / (len(finished) + len(failed)) if finished or failed else 0.0,
        lateness_p99_seconds=percentile([each.begun - each.scheduled for each in records], 99) if records else 0.0,
    )


def percentiles(values: Values) -> Percentiles | None:
    """The distribution of the values; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p99 = (_at(ordered, share) for share in (50, 90, 99))
    return Percentiles(mean=math.fsum(ordered) / len(ordered), p50=p50, p90=p90, p99=p99)


def percentile(values: Values, share: float) -> float:
    """The value below which `share` percent lie, between two values in proportion (as numpy does by default)."""
    return _at(sorted(values), share)


def _at(ordered: Values, share: float) -> float:
    place = (len(ordered) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
