"""Histograms of the gateway: one observation serves several metrics, and a bucket remembers the last trace in it.

`vllm:*`, `gen_ai_*` and our own metrics look at the same values with other bounds and labels. So a value is observed
once, into a histogram that has the bounds of all of them, and each metric is a `view` of it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mesh.telemetry.buckets import Buckets
from mesh.telemetry.spans import TraceContext


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A value that fell into a bucket, and the trace that it belongs to."""

    trace: TraceContext
    value: float
    seconds: float  # when, by the event loop's clock


class TracedHistogram:
    """Bucket i holds the values up to bounds[i], the last one the rest."""

    __slots__ = ("bounds", "counts", "seen", "sum")

    def __init__(self, bounds: Buckets) -> None:
        self.bounds, self.sum = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)
        self.seen: list[tuple[TraceContext, float, float] | None] = [None] * (len(bounds) + 1)  # the fields of Exemplar

    def observe(self, value: float, trace: TraceContext | None = None, now: float = 0.0, count: int = 1) -> None:
        """The value came `count` times."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += count
        self.sum += value * count
        if trace is not None:
            self.seen[bucket] = trace, value, now


@dataclass(slots=True)
class HistogramView:
    """A histogram as one metric shows it."""

    bounds: Buckets
    counts: list[int]
    sum: float
    seen: list[Exemplar | None]  # last exemplar in each bucket; empty: nothing is known

    @classmethod
    def of(cls, histograms: Iterable[TracedHistogram], bounds: Buckets) -> "HistogramView":
        """The sum of these histograms; each of them has all of these bounds, and perhaps more."""
        view = cls(bounds, [0] * (len(bounds) + 1), 0.0, [None] * (len(bounds) + 1))
        for histogram in histograms:
            view.sum += histogram.sum
            for upper, count, seen in zip((*histogram.bounds, None), histogram.counts, histogram.seen, strict=True):
                bucket = len(bounds) if upper is None else bisect_left(bounds, upper)
                view.counts[bucket] += count
                last = view.seen[bucket]
                if seen is not None and (last is None or seen[2] >= last.seconds):
                    view.seen[bucket] = Exemplar(*seen)
        return view

    @property
    def has_seen(self) -> bool:
        return any(self.seen)

    def cumulative(self) -> list[int]:
        return list(accumulate(self.counts))


class HistogramFamily:
    """Histograms of one measure, by the values of its labels."""

    def __init__(self, labels: Sequence[str], *bounds: Buckets) -> None:
        self.labels, self.bounds = tuple(labels), tuple(sorted({bound for each in bounds for bound in each}))
        self._histograms: dict[tuple[str, ...], TracedHistogram] = {}

    def of(self, *values: str) -> TracedHistogram:
        found = self._histograms.get(values)
        if found is None:
            assert len(values) == len(self.labels), self.labels
            found = self._histograms[values] = TracedHistogram(self.bounds)
        return found

    def views(
        self,
        bounds: Buckets,
        by: Sequence[str] = (),
        where: Callable[[dict[str, str]], bool] = lambda labels: True,
    ) -> dict[tuple[str, ...], HistogramView]:
        """One view for each combination of the labels `by`, over the histograms whose labels `where` accepts."""
        groups: dict[tuple[str, ...], list[TracedHistogram]] = {} if by else {(): []}
        for values, histogram in self._histograms.items():
            labels = dict(zip(self.labels, values, strict=True))
            if where(labels):
                groups.setdefault(tuple(labels[name] for name in by), []).append(histogram)
        return {key: HistogramView.of(histograms, bounds) for key, histograms in groups.items()}
