"""Tokens of one choice that its client has not taken yet: step 8 of a request's life, between sequencer and front door.

The sequencer puts tokens, or the error that ended the request, and a front door takes them. Their bytes are bounded:
when the reader is `behind` the sequencer pauses the request, and when it has `drained` the request goes on. A token for
which the reader waits may leave at once, past the reader. A front door that keeps up finds one token at a time; with a
backlog it goes on in turns (gateway/fairness/loop_turns.py), so that a large one never stops the others."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.fairness.loop_turns import Turns
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import Token

TOKEN_BYTES = 256  # memory that a plain token takes, here and as an event of a stream
TOP_BYTES = 96  # memory that each of the likeliest tokens beside it takes
LEAST_BYTES = 4 * 1024  # least limit of one choice, however many share that of their request
BEHIND_SECONDS = 0.1  # over the limit for this time means behind: a burst of tokens is none
DRAINED_SHARE = 1 / 4  # the request goes on when this share of the limit is left
AT_A_TIME = 8  # tokens that a front door with a backlog takes in one turn


Express = Callable[[int, Token | None], bool]  # takes a token, by its id and whole if it was made; False: it does not


class UnreadTokens:
    """Tokens in order, put by one sequencer and taken by one reader."""

    __slots__ = ("_items", "_limit_bytes", "_over_since", "_taken", "_turns", "bytes", "express", "waiting")

    def __init__(self, limit_bytes: int, turns: Turns) -> None:
        self.bytes = 0
        self._limit_bytes, self._turns = limit_bytes, turns
        self._items: deque[Token | BatonError] = deque()
        self._over_since: float | None = None  # when more than the limit was held; None: less is
        self._taken = 0  # items taken since the reader last waited
        self.waiting: asyncio.Future[None] | None = None  # what the reader waits for
        self.express: Express | None = None  # past a reader that waits; None: every token goes to the reader

    def passes(self, token: int, made: Token | None) -> bool:
        """The reader waits and the token leaves past it. False: it has to be `put`."""
        return self.waiting is not None and self.express is not None and self.express(token, made)

    def put(self, token: Token, now: float) -> None:
        self._items.append(token)
        self.bytes += TOKEN_BYTES + TOP_BYTES * len(token.top_ids)
        if self.bytes > self._limit_bytes and self._over_since is None:
            self._over_since = now
        if self.waiting is not None:
            self._wake()

    def end(self, error: BatonError | None) -> None:
        """The request is over; a client that left takes nothing more."""
        self.express = None
        if isinstance(error, Cancelled):
            self.drop()
        if error is not None:
            self.fail(error)

    def fail(self, error: BatonError) -> None:
        """The error that ended the request; the reader gets it behind what is held."""
        self._items.append(error)
        self._wake()

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    @property
    def ready(self) -> bool:
        """Whether the reader may take an item at once."""
        return bool(self._items) and self._taken < AT_A_TIME

    async def wait(self) -> None:
        """Returns when the reader may take an item: when there is one, or when it is the turn of a backlog."""
        if self._items:
            await self._turns.next()
        while not self._items:
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        self._taken = 0

    def take(self) -> Token | BatonError:
        """The oldest item; there is one."""
        self._taken += 1
        item = self._items.popleft()
        if isinstance(item, Token):
            self.bytes -= TOKEN_BYTES + TOP_BYTES * len(item.top_ids)
            if self._over_since is not None and self.bytes <= self._limit_bytes:
                self._over_since = None
        return item

    def drop(self) -> None:
        """Forget what is held: its reader is gone."""
        self._items.clear()
        self.bytes = 0

    def behind(self, now: float) -> bool:
        return self._over_since is not None and now - self._over_since >= BEHIND_SECONDS

    @property
    def drained(self) -> bool:
        return self.bytes <= DRAINED_SHARE * self._limit_bytes

    def __len__(self) -> int:
        """Tokens that the reader has not taken: the error behind them is none."""
        return len(self._items) - (bool(self._items) and not isinstance(self._items[-1], Token))


def share(reader_bytes: int, choices: int) -> int:
    """Limit in bytes of each of the `choices` choices of a request."""
    return max(LEAST_BYTES, reader_bytes // choices)
