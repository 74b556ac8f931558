"""A figure that was measured several times: its median, and how far the measurements spread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))

    @classmethod
    def ratio(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Spread":
        """Ours over theirs of the same turn."""
        return cls.of([mine / its for mine, its in zip(ours, theirs, strict=True)])

    @property
    def range(self) -> list[float]:
        return [self.low, self.high]

    def __str__(self) -> str:
        return f"{self.median:8.3f}   ({self.low:.3f} to {self.high:.3f})"


def medians(spreads: Mapping[str, Spread]) -> dict[str, float]:
    return {name: spread.median for name, spread in spreads.items()}


def ranges(spreads: Mapping[str, Spread]) -> dict[str, list[float]]:
    return {name: spread.range for name, spread in spreads.items()}


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the true median lies in 95 of 100 cases, whatever the noise looks like."""
    ordered, count = sorted(values), len(values)
    reach = 1.96 * sqrt(count) / 2
    return ordered[max(0, int(count / 2 - reach))], ordered[min(count - 1, ceil(count / 2 + reach))]
