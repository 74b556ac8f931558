"""Notices when the process's event loop stands still: a callback that computes, or a process that gets no processor.

A timer that comes late is the sign. It runs only while a recorded request is under way, so that an idle process sleeps.
Traces show each such interval as a span `loop.blocked` inside the span that it interrupts."""

import asyncio
from collections import deque

TICK_SECONDS = 0.010
BLOCKED_SECONDS = 0.010  # shorter delays are not shown
KEPT_INTERVALS = 256

Interval = tuple[float, float]


class LoopMonitor:
    def __init__(self) -> None:
        self.blocked: deque[Interval] = deque(maxlen=KEPT_INTERVALS)  # (start, end) on the loop's clock, oldest first
        self.blocked_seconds = 0.0  # sum of all intervals since the start
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._before = 0.0  # when the timer went off last
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A request begins that wants to know."""
        self._users += 1
        if self._timer is None:
            self._before = self._loop.time()
            self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def end(self, since: float) -> list[Interval]:
        """The request is over; the intervals that touch the time since it began."""
        self._look()
        self._users -= 1
        return [interval for interval in self.blocked if interval[1] > since]

    def _tick(self) -> None:
        self._look()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick) if self._users > 0 else None

    def _look(self) -> None:
        """The timer may be late at this moment: a callback that ends a request can run before it."""
        now, due = self._loop.time(), self._before + TICK_SECONDS
        if now - due >= BLOCKED_SECONDS:
            began = due - TICK_SECONDS / 2  # at some time since the timer went off last
            self.blocked.append((began, now))
            self.blocked_seconds += now - began
        self._before = max(self._before, now)
