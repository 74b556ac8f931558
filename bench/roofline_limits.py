"""The limits of this machine, measured between the points that are held against them.

Bandwidth and clock change within seconds, so each run of a point stands between two measurements of the limits. It
counts only when no limit that binds the point changed by more than a tenth, and it is compared with their mean."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from time import perf_counter

import baton_kernels
from baton_kernels import limits
from engine.model.work import StepWork

READ_BYTES = 1_717_986_944  # 1.6 GiB, far beyond any cache
PEAK_STEPS = 400_000  # some ten milliseconds
MOVED = 0.1


class Bound(Enum):
    """The limits that a measured point can meet."""

    READ = "read"
    PEAK = "peak"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class MachineLimits:
    read: float  # bytes per second
    peak: float  # operations per second
    # Operations per second of tiles that are loaded from the first-level cache, with four of the eight in use, as in
    # products, and with all of them; 0: the path has no tiles.
    loaded: float = 0.0
    eight: float = 0.0

    def seconds(self, nbytes: float, operations: float) -> float:
        return max(nbytes / self.read, operations / self.peak)

    def near(self, other: "MachineLimits", bound: Bound = Bound.BOTH) -> bool:
        """Whether the limits that bind what is measured are the same, but for a tenth."""
        read, peak = (self.read, other.read), (self.peak, other.peak)
        pairs = {Bound.READ: (read,), Bound.PEAK: (peak,), Bound.BOTH: (read, peak)}[bound]
        return all(abs(a - b) <= MOVED * max(a, b) for a, b in pairs)

    def bound(self, work: StepWork) -> Bound:
        """The limit that takes more than twice the other's time; else both."""
        reading, computing = work.nbytes / self.read, work.operations / self.peak
        if computing > 2 * reading:
            return Bound.PEAK
        return Bound.READ if reading > 2 * computing else Bound.BOTH


@dataclass(slots=True)
class Figures:
    """The runs of one point that count."""

    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    dropped: int = 0

    @property
    def share(self) -> float:
        return median(self.shares)


class Meter:
    """Measures limits and points by turns."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._memory = limits.aligned(READ_BYTES)
        self.seen: list[MachineLimits] = []

    def limits(self) -> MachineLimits:
        read, peak = limits.read_bytes_per_second(self._memory), limits.peak(self._path, PEAK_STEPS)
        loads = ("loaded_tiles", "eight_tiles") if self._path == "amx" else ()
        measured = MachineLimits(read, peak, *(limits.operations_per_second(kind, PEAK_STEPS // 4) for kind in loads))
        self.seen.append(measured)
        return measured

    def point(self, work: StepWork, run: Callable[[], object], *, runs: int, most: int) -> Figures:
        """Measure until `runs` runs count, at most `most` runs. A first run warms up and is not timed."""
        figures = Figures()
        run()
        before = self.limits()
        for _ in range(most):
            began = perf_counter()
            run()
            seconds = perf_counter() - began
            after = self.limits()
            if before.near(after, before.bound(work)):
                both = MachineLimits((before.read + after.read) / 2, (before.peak + after.peak) / 2)
                figures.seconds.append(seconds)
                figures.shares.append(both.seconds(work.nbytes, work.operations) / seconds)
            else:
                figures.dropped += 1
            before = after
            if len(figures.seconds) == runs:
                return figures
        moved = f"the limits moved by more than a tenth across {figures.dropped} of {most} runs"
        raise NotQuiet(f"{moved}: try on a quiet host, or with a larger --most")


class NotQuiet(Exception):
    """The machine's limits change too much for a comparison."""


def slow_bodies(path: str) -> list[str]:
    """Operations of this path that run a reference body, or that emulate tiles."""
    chosen = baton_kernels.chosen()
    used = {o: b for o, b in chosen.items() if "." not in o or path in o}
    return [f"{o}: {b}" for o, b in used.items() if b == "plain" or (path == "amx" and "amx" in o and b != "amx")]
