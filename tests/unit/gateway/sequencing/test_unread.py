"""Tokens that wait for a reader are counted and bounded, and readers with a backlog go on in turns."""

import asyncio

from gateway.fairness.loop_turns import Turns
from gateway.sequencing.unread import (
    AT_A_TIME,
    BEHIND_SECONDS,
    LEAST_BYTES,
    TOKEN_BYTES,
    TOP_BYTES,
    UnreadTokens,
    share,
)
from mesh.errors import Unavailable
from mesh.messages.jobs import Token
from tests.sim.loop import virtual


def filled(count: int, limit: int = 1 << 20, turns: Turns | None = None) -> UnreadTokens:
    unread = UnreadTokens(limit, turns or Turns())
    for position in range(count):
        unread.put(Token(position, 7), 0.0)
    return unread


def test_a_reader_is_behind_when_too_much_waits_for_too_long() -> None:
    unread = filled(4, limit=4 * TOKEN_BYTES)
    assert not unread.behind(100.0)
    unread.put(Token(4, 7), 1.0)
    assert not unread.behind(1.0) and unread.behind(1.0 + BEHIND_SECONDS)
    unread.take()
    assert not unread.behind(100.0)
    unread.put(Token(5, 7), 2.0)
    assert not unread.behind(2.0) and unread.behind(3.0)


def test_a_reader_has_drained_when_a_quarter_is_left() -> None:
    unread, drained = filled(8, limit=8 * TOKEN_BYTES), []
    while len(unread):
        drained.append(unread.drained)
        unread.take()
    assert drained == [False] * 6 + [True] * 2 and unread.bytes == 0


def test_likeliest_tokens_count_and_an_error_counts_nothing() -> None:
    unread = filled(0)
    unread.put(Token(0, 1, top_ids=(1, 2), top_logprobs=(0.0, 0.0)), 0.0)
    unread.fail(Unavailable("x"))
    assert unread.bytes == TOKEN_BYTES + 2 * TOP_BYTES
    unread.take()
    assert unread.bytes == 0 and isinstance(unread.take(), Unavailable)


def test_choices_share_the_limit_of_their_request() -> None:
    assert share(1 << 20, 4) == 1 << 18 and share(1 << 20, 10_000) == LEAST_BYTES


def test_what_is_dropped_is_forgotten() -> None:
    unread = filled(3)
    unread.drop()
    assert len(unread) == unread.bytes == 0


@virtual
async def test_readers_with_a_backlog_take_turns_and_others_run_meanwhile() -> None:
    turns, passes = Turns(), [0]
    most = [0]

    async def read(unread: UnreadTokens) -> None:
        while len(unread):
            if not unread.ready:
                await unread.wait()
            unread.take()
            taken[passes[0]] = taken.get(passes[0], 0) + 1

    async def count() -> None:
        while not done.is_set():
            await asyncio.sleep(0)
            passes[0] += 1

    taken: dict[int, int] = {}
    done = asyncio.Event()
    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(read(filled(40, turns=turns)) for _ in range(10)))
    done.set()
    await counting
    first, *later = [taken[each] for each in sorted(taken)]
    most[0] = max(later)
    assert sum(taken.values()) == 400
    assert first <= 10 * AT_A_TIME and most[0] <= 2 * AT_A_TIME, "one reader at a time goes on"


@virtual
async def test_a_reader_that_keeps_up_never_waits_for_a_turn() -> None:
    unread, turns = UnreadTokens(1 << 20, Turns()), 0
    for position in range(100):
        reading = asyncio.ensure_future(unread.wait())
        await asyncio.sleep(0)
        unread.put(Token(position, 7), 0.0)
        await reading
        token = unread.take()
        assert isinstance(token, Token) and token.position == position
        turns += 1
    assert turns == 100


@virtual
async def test_a_turn_passes_over_readers_that_were_cancelled() -> None:
    turns = Turns()
    first, second = asyncio.ensure_future(turns.next()), asyncio.ensure_future(turns.next())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, 1.0)
