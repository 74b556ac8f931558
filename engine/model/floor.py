"""The time that a stage of a request takes at least on this machine: bytes over bandwidth, operations over peak.

A worker measures both limits while it has nothing to do, some milliseconds each time, and keeps the best of them.
Traces then carry the floor beside the measured time. Until then, and on devices whose limits are not measured, there is
no floor."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from baton_kernels import limits
from baton_kernels.arrays import Array
from engine.model.work import ModelWork, StepWork

FIRST_SECONDS = 3.0  # after its start a worker lets its host come to rest
AGAIN_SECONDS = 5.0
MEASUREMENTS = 3
READ_BYTES = 256 * 2**20  # most bytes that a measurement reads
PEAK_STEPS = 100_000  # some milliseconds


class Floor(Protocol):
    def prompt_seconds(self, tokens: int, cached: int) -> float | None:
        """Least time to compute a prompt of which the cache holds the first tokens."""

    def answer_seconds(self, steps: int, start: int, tokens: int) -> float | None:
        """Least time of `steps` decode steps that yield `tokens` tokens from slot `start` on."""

    def copy_seconds(self, nbytes: int) -> float | None:
        """Least time to move so many bytes through memory."""


class MeasuredFloor(Floor, Protocol):
    """A floor whose limits the worker measures."""

    async def measure_when_idle(self, busy: Callable[[], bool]) -> None: ...


class NoFloor:
    """Nothing is known about this device."""

    def prompt_seconds(self, tokens: int, cached: int) -> float | None:
        return None

    def answer_seconds(self, steps: int, start: int, tokens: int) -> float | None:
        return None

    def copy_seconds(self, nbytes: int) -> float | None:
        return None

    async def measure_when_idle(self, busy: Callable[[], bool]) -> None:
        """Return at once: this device has no limits to measure."""


NO_FLOOR = NoFloor()


class CpuFloor:
    def __init__(self, work: ModelWork, path: str, weights: Array) -> None:
        """`weights`: packed weights; bandwidth is measured by reading some of them, as steps do."""
        self._work, self._path = work, path
        self._weights = weights.reshape(-1)[: READ_BYTES // 64 * 64]
        self.read_bytes_per_second = self.operations_per_second = 0.0  # 0: not measured yet

    def prompt_seconds(self, tokens: int, cached: int) -> float | None:
        return self._seconds(self._work.step(rows=max(1, tokens - cached), start=cached, sampled=1))

    def answer_seconds(self, steps: int, start: int, tokens: int) -> float | None:
        middle = start + tokens // 2  # the context of the average step
        least = self._seconds(self._work.step(rows=1, start=middle, sampled=1))
        return None if least is None else least * steps

    def copy_seconds(self, nbytes: int) -> float | None:
        return self._seconds(StepWork(2 * nbytes, 0))

    def measure(self) -> None:
        """Takes some milliseconds, with all threads of the pool."""
        self.read_bytes_per_second = max(self.read_bytes_per_second, limits.read_bytes_per_second(self._weights))
        self.operations_per_second = max(self.operations_per_second, limits.peak(self._path, PEAK_STEPS))

    async def measure_when_idle(self, busy: Callable[[], bool]) -> None:
        """Measure a few times while the worker has no request; then return."""
        pause, done = FIRST_SECONDS, 0
        while done < MEASUREMENTS:
            await asyncio.sleep(pause)
            if not busy():
                await asyncio.to_thread(self.measure)
                done += 1
            pause = AGAIN_SECONDS

    def _seconds(self, work: StepWork) -> float | None:
        if not self.read_bytes_per_second or not self.operations_per_second:
            return None
        return max(work.nbytes / self.read_bytes_per_second, work.operations / self.operations_per_second)
