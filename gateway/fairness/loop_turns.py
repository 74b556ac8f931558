"""Turns on the event loop: work that comes in a heap runs one piece in each pass, and others run between the pieces.

A piece is what a front door makes of a few tokens. Without turns, a hundred readers that find a backlog at the same
moment would all work in one pass, and nothing else would run meanwhile."""

import asyncio
from collections import deque


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given = False  # this pass has had its turn, or a turn is given in the next pass

    async def next(self) -> None:
        """Returns when it is the caller's turn. Turns go round in the order of the calls."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._given:
            self._given = True
            loop.call_soon(self._give)
        await mine

    async def first(self) -> None:
        """The same, but returns at once where nobody has had a turn in this pass."""
        if self._given:
            await self.next()
        else:
            self._given = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        while self._waiting:
            mine = self._waiting.popleft()
            if not mine.done():  # else its task was cancelled
                mine.set_result(None)
                break
        self._given = bool(self._waiting)
        if self._given:
            asyncio.get_running_loop().call_soon(self._give)
