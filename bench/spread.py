"""A figure that was measured several times: its median, and how far the measurements spread."""

from collections.abc import Sequence
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

    def __str__(self) -> str:
        return f"{self.median:8.3f}   ({self.low:.3f} to {self.high:.3f})"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the true median lies in 95 of 100 cases, whatever the noise looks like."""
    ordered, count = sorted(values), len(values)
    reach = 1.96 * sqrt(count) / 2
    return ordered[max(0, int(count / 2 - reach))], ordered[min(count - 1, ceil(count / 2 + reach))]
