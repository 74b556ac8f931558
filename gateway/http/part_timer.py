"""The time that a client has for the part of a request that is under way.

A timer that fires late shows that this process stood still: then the client has AGAIN_SECONDS more, once, in which what
it sent meanwhile is read. A client is never judged by the time of this process."""

import asyncio
from collections.abc import Callable
from enum import Enum
from math import inf

STOOD_STILL_SECONDS = 0.1  # a timer that is later than this shows it
AGAIN_SECONDS = 1.0


class Part(Enum):
    HEAD = "head"  # the headers of a request are not complete; so is a new connection
    BODY = "body"  # the headers are complete, the body is not
    DONE = "done"  # the request is complete: its answer is under way, or the next one has not begun
    OVER = "over"  # no further request is read: what the client still sends is dropped


class PartTimer:
    def __init__(self, on_late: Callable[[Part], None]) -> None:
        self._loop, self._on_late = asyncio.get_running_loop(), on_late
        self._timer: asyncio.TimerHandle | None = None
        self.part: Part | None = None  # what the timer is for

    def start(self, part: Part, seconds: float) -> None:
        """Goes on where it runs for this part already."""
        if part is not self.part:
            self.stop()
            due = self._loop.time() + seconds
            self.part, self._timer = part, self._loop.call_at(due, self._late, part, due)

    def call(self, part: Part | None, seconds: float, call: Callable[[], None]) -> None:
        """Call this instead, at that time."""
        self.stop()
        self.part, self._timer = part, self._loop.call_later(seconds, call)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.part = None

    def close(self) -> None:
        """The connection is lost. It and this timer refer to each other: that would be garbage."""
        self.stop()
        self._on_late = _nothing

    def _late(self, part: Part, due: float) -> None:
        if self._loop.time() - due > STOOD_STILL_SECONDS:
            self._timer = self._loop.call_later(AGAIN_SECONDS, self._late, part, inf)
            return
        self._timer = self.part = None
        self._on_late(part)


def _nothing(part: Part) -> None: ...
