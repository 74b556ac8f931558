"""How long one pass of an event loop computes at most: what every other connection of a server waits for meanwhile.

It counts the processor time of the loop's own thread, so that a busy machine does not add to it, and leaves the garbage
collector out. The loop never sleeps while it is measured."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

ATTEMPTS = 3
Found = TypeVar("Found")


async def best_of(attempt: Callable[[], Awaitable[tuple[Found, float]]], most_seconds: float) -> Found:
    """Returns the result of the first attempt that takes less than so long; AssertionError when none of a few does. A
    neighbour can slow a processor down, so one that takes longer says nothing. Each must do the whole work anew."""
    tried = list[float]()
    for _ in range(ATTEMPTS):
        found, seconds = await attempt()
        if seconds < most_seconds:
            return found
        tried.append(seconds)
    raise AssertionError(f"the longest passes took {tried} s each time, not less than {most_seconds} s")


class LongestPass:
    """Measures between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False
        self._last = 0.0

    def __enter__(self) -> "LongestPass":
        gc.disable()
        self._running, self._last = True, time.thread_time()
        asyncio.get_running_loop().call_soon(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        gc.enable()

    def _look(self) -> None:
        now = time.thread_time()
        self.seconds = max(self.seconds, now - self._last)
        self._last = now
        if self._running:
            asyncio.get_running_loop().call_soon(self._look)
