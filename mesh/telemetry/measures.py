"""The measures of a process about itself: counters and histograms with fixed bounds, all cumulative since its start.

A worker counts here and pushes a `Measures` message with everything to its gateways, at most once a second; so a lost
message loses nothing. Counting is an addition, observing a search among a dozen bounds: cheap enough for every step."""

from bisect import bisect_left
from collections.abc import Mapping

from mesh.messages.reports import Distribution, Measure, Measures
from mesh.telemetry.buckets import Buckets


class Histogram:
    """How often values fell into each bucket. Bucket i holds the values up to bounds[i], the last one the rest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Buckets) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class MeasureBook:
    """The measures of one worker. A name is the metric's, and behind it the values of its labels: `bytes/shm/ok`."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}

    def add(self, name: str, by: float = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + by

    def histogram(self, name: str, bounds: Buckets) -> Histogram:
        """The histogram of this name; the first call makes it."""
        if name not in self._histograms:
            self._histograms[name] = Histogram(bounds)
        return self._histograms[name]

    def message(self, counts: Mapping[str, int]) -> Measures:
        """Everything as one message, together with a worker's counts."""
        values = {**counts, **self._counters}
        return Measures(
            tuple(Measure(name, float(value)) for name, value in values.items()),
            tuple(Distribution(name, tuple(h.counts), h.sum) for name, h in self._histograms.items()),
        )
