"""The event loop that services run on: uvloop, with a clock that is fine enough to measure by.

uvloop's own clock counts whole milliseconds, and a hand-off takes about one. Measured by a finer clock, uvloop's timers
therefore go off up to 1.5 ms early; code that then compares times finds that nothing is due, and would sleep on for
ever. So this loop sets every timer that much later: none goes off before its time by this loop's clock."""

import time
from asyncio import TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

Arguments = TypeVarTuple("Arguments")

_EARLY_SECONDS = 0.0015  # half a millisecond of rounding, and the current one of uvloop's clock


class PreciseLoop(uvloop.Loop):
    def time(self) -> float:
        return time.monotonic()

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> TimerHandle:
        """uvloop's `call_at` calls this method too."""
        later = delay + _EARLY_SECONDS if delay > 0 else delay
        return super().call_later(later, callback, *args, context=context)
