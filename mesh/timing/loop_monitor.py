"""Notices when the process's event loop stands still: a callback that computes, or a process that gets no processor.

A timer that comes late is the sign. Each of its wake-ups takes a core from the threads of a step, of this process or of
another one of the host. So it runs only while a recorded request is under way and something has just happened: a loop
that handles nothing blocks nothing. While a step computes it rests too: a timer that is set already goes off once more
and says nothing, which costs less than to cancel it and to set another one at each of many short steps. A step says
when it was done, and the loop that reads its result later than that stood still. Traces show each such interval as a
span `loop.blocked` inside the span that it interrupts."""

import asyncio
from collections import deque

TICK_SECONDS = 0.020
BLOCKED_SECONDS = 0.010  # shorter delays are not shown
ACTIVE_TICKS = 2  # after this number, without anything that happens, the timer rests
KEPT_INTERVALS = 256

Interval = tuple[float, float]


class LoopMonitor:
    def __init__(self) -> None:
        self.blocked: deque[Interval] = deque(maxlen=KEPT_INTERVALS)  # (start, end) on the loop's clock, oldest first
        self.blocked_seconds = 0.0  # sum of all intervals since the start
        self._users = 0
        self._steps = 0  # steps that compute now
        self._before = 0.0  # when the timer went off last
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0  # since something happened

    def begin(self) -> None:
        """A request begins that wants to know."""
        self._users += 1
        self.active()

    def active(self) -> None:
        """Something happens that the loop has to handle."""
        self._ticks = 0
        if self._timer is None and self._users > 0:
            self._start()

    def end(self, since: float) -> list[Interval]:
        """The request is over; the intervals that touch the time since it began."""
        self._look()
        self._users -= 1
        return [interval for interval in self.blocked if interval[1] > since]

    def step_begins(self) -> None:
        self._look()
        self._steps += 1

    def step_ends(self, done_seconds: float) -> None:
        """The loop reads the result of a step that was done at this time; 0: not known."""
        self._steps -= 1
        if self._users > 0:
            now = asyncio.get_running_loop().time()
            if done_seconds and now - done_seconds >= BLOCKED_SECONDS:
                self._note(done_seconds, now)
            self._before = now  # a timer from before the step now goes off early, and is not taken for a late one
            self.active()

    def _start(self) -> None:
        if not self._steps:
            loop = asyncio.get_running_loop()
            self._before = loop.time()
            self._timer = loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        if self._steps:
            self._timer = None
            return
        self._look()
        self._ticks += 1
        again = self._users > 0 and self._ticks < ACTIVE_TICKS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick) if again else None

    def _look(self) -> None:
        """The timer may be late at this moment: a callback that ends a request can run before it."""
        if self._timer is None or self._steps:
            return
        now, due = asyncio.get_running_loop().time(), self._before + TICK_SECONDS
        if now - due >= BLOCKED_SECONDS:
            began = due - TICK_SECONDS / 2  # at some time since the timer went off last
            self._note(began, now)
        self._before = max(self._before, now)

    def _note(self, began: float, now: float) -> None:
        self.blocked.append((began, now))
        self.blocked_seconds += now - began
