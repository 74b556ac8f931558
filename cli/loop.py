"""The event loop that services run on: uvloop, with a clock that is fine enough to measure by.

uvloop's own clock counts whole milliseconds; a hand-off takes about as long. Its timers therefore go off up to 1.5 ms
before a finer clock says that they are due, and whoever then compares times finds that it is too early and sleeps on
for ever. So every timer is set that much later: none goes off before its time by this loop's clock."""

import time
from asyncio import TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

Arguments = TypeVarTuple("Arguments")

_EARLY_SECONDS = 0.0015  # half a millisecond of rounding, and the one that uvloop's clock has begun


class PreciseLoop(uvloop.Loop):
    def time(self) -> float:
        return time.monotonic()

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> TimerHandle:
        """`call_at` comes through here too."""
        later = delay + _EARLY_SECONDS if delay > 0 else delay
        return super().call_later(later, callback, *args, context=context)
