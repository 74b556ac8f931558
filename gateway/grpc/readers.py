"""Notices that the client of a gRPC stream takes nothing: gRPC itself waits for it without end.

The front door says before and after each message that it sends one. Over HTTP the connection notices it
(gateway/http/writing.py)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from mesh.errors import BatonError, ReaderStalled

LOOKS = 4  # how often in the limit the watch looks

Item = TypeVar("Item")


class ReaderWatch:
    """Calls `on_stall` once when sending one message takes `seconds` or longer; 0: never."""

    def __init__(self, seconds: float, on_stall: Callable[[BatonError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._on_stall = seconds, on_stall
        self.stalled = False
        self._sends_since: float | None = None
        self._timer = self._loop.call_later(seconds / LOOKS, self._look) if seconds else None

    async def over(self, messages: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """The same messages; the caller sends each before it asks for the next."""
        async for message in messages:
            self._sends_since = self._loop.time()
            yield message
            self._sends_since = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._sends_since is not None and self._loop.time() - self._sends_since >= self._seconds:
            self.stalled = True
            self._on_stall(ReaderStalled(f"the client took nothing of its answer for {self._seconds:g} s"))
        else:
            self._timer = self._loop.call_later(self._seconds / LOOKS, self._look)
