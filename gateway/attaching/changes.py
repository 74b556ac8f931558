"""A counter that many tasks can wait on: each hears of every change, however many wait and whenever they begin to."""

import asyncio


class Changes:
    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()  # replaced by a new one at every change

    def set(self) -> None:
        self.count += 1
        before, self._next = self._next, asyncio.Event()
        before.set()

    async def after(self, count: int) -> None:
        """Wait until there have been more than `count` changes."""
        while self.count == count:
            await self._next.wait()
