"""Turns at work that is scarce and takes long, given to one client after the other.

Some requests need a process of the gateway for a second: a costly grammar, a chat template of the client's own. In one
queue for all, a client that sends many of them would keep every other client out. So each client has a queue of its
own, the queues take turns, and where all places are taken the client that holds the most of them loses its last one."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from mesh.errors import Overloaded

# Whose request this task serves: the tenant, or the client's address at a gateway without keys. Set by the front doors.
WHOSE: ContextVar[str] = ContextVar("whose", default="")


class FairTurns:
    def __init__(self, what: str, *, at_once: int, waiting: int, longest_seconds: float) -> None:
        """`what` waits, in words for clients; nothing waits longer than `longest_seconds`."""
        self._what = what
        self._at_once = at_once
        self._places = waiting
        self._longest = longest_seconds
        self._running = Counter[str]()
        self._queues = dict[str, deque[asyncio.Future[None]]]()  # turns that clients wait for; the next client first

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The turn lasts while the context does. Raises Overloaded where it would come too late."""
        whose = WHOSE.get()
        if self._running.total() < self._at_once:
            self._running[whose] += 1
        else:
            await self._wait(whose)
        try:
            yield
        finally:
            self._end(whose)

    async def _wait(self, whose: str) -> None:
        self._make_place(whose)
        mine = asyncio.get_running_loop().create_future()
        self._queues.setdefault(whose, deque()).append(mine)
        try:
            async with asyncio.timeout(self._longest):
                await mine
        except TimeoutError:
            self._leave(whose, mine)
            raise self._refusal() from None
        except asyncio.CancelledError:
            self._leave(whose, mine)
            raise

    def _make_place(self, whose: str) -> None:
        if sum(map(len, self._queues.values())) < self._places:
            return
        heaviest = max(self._queues, key=lambda each: len(self._queues[each]))
        if len(self._queues[heaviest]) <= len(self._queues.get(whose, ())) + 1:
            raise self._refusal()
        last = self._queues[heaviest].pop()
        if not last.done():
            last.set_exception(self._refusal())

    def _leave(self, whose: str, mine: asyncio.Future[None]) -> None:
        if mine.done() and not mine.cancelled() and mine.exception() is None:  # the turn had just come
            self._end(whose)
        queue = self._queues.get(whose)
        if queue is not None and mine in queue:
            queue.remove(mine)
            if not queue:
                del self._queues[whose]

    def _end(self, whose: str) -> None:
        self._running[whose] -= 1
        if not self._running[whose]:
            del self._running[whose]
        while self._queues and self._running.total() < self._at_once:
            chosen = min(self._queues, key=lambda each: self._running[each])  # the first one among equals
            queue = self._queues.pop(chosen)
            mine = queue.popleft()
            if queue:
                self._queues[chosen] = queue  # behind all others
            if not mine.done():
                mine.set_result(None)
                self._running[chosen] += 1

    def _refusal(self) -> Overloaded:
        what = f"too many {self._what} wait; nothing of this request has run: try again later"
        return Overloaded(what, wait_seconds=self._longest, retry_after_seconds=self._longest)
