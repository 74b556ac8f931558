"""What is held for a reader is counted and bounded, and readers with a backlog go on in turns."""

import asyncio

from gateway.fairness.loop_turns import Turns
from gateway.sequencing.unread import AT_A_TIME, BEHIND_SECONDS, LEAST_BYTES, TOKEN_BYTES, TOP_BYTES, Held, share
from mesh.errors import Unavailable
from mesh.messages.jobs import Token
from tests.sim.loop import run_virtual


def filled(count: int, limit: int = 1 << 20, turns: Turns | None = None) -> Held:
    held = Held(limit, turns or Turns())
    for position in range(count):
        held.put(Token(position, 7), 0.0)
    return held


def test_a_reader_is_behind_when_too_much_is_held_for_too_long() -> None:
    held = filled(4, limit=4 * TOKEN_BYTES)
    assert not held.behind(100.0)
    held.put(Token(4, 7), 1.0)
    assert not held.behind(1.0) and held.behind(1.0 + BEHIND_SECONDS)
    held.take()
    assert not held.behind(100.0)
    held.put(Token(5, 7), 2.0)
    assert not held.behind(2.0) and held.behind(3.0)


def test_a_reader_has_drained_when_a_quarter_is_left() -> None:
    held, drained = filled(8, limit=8 * TOKEN_BYTES), []
    while len(held):
        drained.append(held.drained)
        held.take()
    assert drained == [False] * 6 + [True] * 2 and held.bytes == 0


def test_likeliest_tokens_count_and_an_error_counts_nothing() -> None:
    held = filled(0)
    held.put(Token(0, 1, top_ids=(1, 2), top_logprobs=(0.0, 0.0)), 0.0)
    held.fail(Unavailable("x"))
    assert held.bytes == TOKEN_BYTES + 2 * TOP_BYTES
    held.take()
    assert held.bytes == 0 and isinstance(held.take(), Unavailable)


def test_choices_share_the_limit_of_their_request() -> None:
    assert share(1 << 20, 4) == 1 << 18 and share(1 << 20, 10_000) == LEAST_BYTES


def test_what_is_dropped_is_forgotten() -> None:
    held = filled(3)
    held.drop()
    assert len(held) == held.bytes == 0


def test_readers_with_a_backlog_take_turns_and_others_run_meanwhile() -> None:
    async def main() -> None:
        turns, passes = Turns(), [0]
        most = [0]

        async def read(held: Held) -> None:
            while len(held):
                if not held.ready:
                    await held.wait()
                held.take()
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

    run_virtual(main())


def test_a_reader_that_keeps_up_never_waits_for_a_turn() -> None:
    async def main() -> None:
        held, turns = Held(1 << 20, Turns()), 0
        for position in range(100):
            reading = asyncio.ensure_future(held.wait())
            await asyncio.sleep(0)
            held.put(Token(position, 7), 0.0)
            await reading
            token = held.take()
            assert isinstance(token, Token) and token.position == position
            turns += 1
        assert turns == 100

    run_virtual(main())


def test_a_turn_passes_over_readers_that_were_cancelled() -> None:
    async def main() -> None:
        turns = Turns()
        first, second = asyncio.ensure_future(turns.next()), asyncio.ensure_future(turns.next())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 1.0)

    run_virtual(main())
