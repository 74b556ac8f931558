"""Decides what the next step holds, and when the step behind it is known already."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from decode_svc.chunk_size import FIRST_ROWS, ChunkSize
from decode_svc.flights import Flight
from decode_svc.growth import Growth
from decode_svc.planning import Planning
from decode_svc.request.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.speculation import DraftSource, Speculation
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Sampling
from tests.unit.decode_svc.fakes import PAGE, Surroundings

CHUNK = 8
WHOLE_CHUNKS = ChunkSize(chunk_tokens=CHUNK, itl_target_ms=0)


def planning(
    around: Surroundings, source: DraftSource = DraftSource.OFF, chunk_size: ChunkSize = WHOLE_CHUNKS
) -> Planning:
    speculation = Speculation(source, draft_tokens=4, chunk_tokens=CHUNK, page_tokens=PAGE, context_tokens=100)
    growth = Growth(around.requests, around.pages, horizon=around.room.horizon, numerics="class a", host=around.host)
    return Planning(around.requests, growth, speculation, horizon=around.room.horizon, chunk_size=chunk_size)


def running(around: Surroundings, key: int, *, tokens: int = 8, filled: int | None = None) -> DecodeRequest:
    one = around.add(key, tokens=tokens, opened=float(key), phase=DecodePhase.RUNNING)
    pages = around.pages.take(-(-tokens // PAGE), b"")
    assert pages is not None
    one.pages, one.filled = list(pages), tokens - 1 if filled is None else filled
    return one


def flight(around: Surroundings, plan: Plan) -> Flight:
    result: Any = asyncio.get_running_loop().create_future()
    return Flight(plan, result, {piece.key: around.requests[piece.key] for piece in plan.pieces})


def test_requests_in_decode_get_a_row_each_and_prompts_share_a_chunk() -> None:
    around = Surroundings(pages=32)
    running(around, 1)
    running(around, 2, tokens=5, filled=0)
    running(around, 3, tokens=20, filled=0)
    running(around, 4)
    mine = planning(around)
    plan = mine.plan()
    assert [(piece.key, len(piece.tokens), piece.sampled) for piece in plan.pieces] == [
        (1, 1, 1),
        (2, 5, 1),
        (3, 3, 0),
        (4, 1, 1),
    ]
    assert mine.counts() == {"steps": 1, "steps_ahead": 0, "largest_batch": 4}


def test_only_running_requests_are_in_a_step() -> None:
    around = Surroundings()
    for phase in (DecodePhase.OPEN, DecodePhase.LOCAL, DecodePhase.LANDING, DecodePhase.LOST):
        around.requests.clear()
        around.add(1, phase=phase)
        assert planning(around).plan().pieces == ()


def test_a_request_that_finds_no_page_is_left_out_and_the_others_go_on() -> None:
    around = Surroundings(pages=4)
    running(around, 1)
    young = running(around, 2)
    young.tokens.append(9)
    young.filled = 8  # its next token needs a third page
    mine = planning(around)
    assert [piece.key for piece in mine.plan().pieces] == [1]
    assert around.host.starving == [young]


def test_a_prompt_beside_requests_that_decode_is_cut_to_fit_into_their_gap() -> None:
    around = Surroundings(pages=32)
    running(around, 1)
    running(around, 2, tokens=40, filled=0)
    small = planning(around, chunk_size=ChunkSize(chunk_tokens=CHUNK * 4, itl_target_ms=80.0))
    assert [len(piece.tokens) for piece in small.plan().pieces] == [1, FIRST_ROWS]
    whole = planning(around, chunk_size=ChunkSize(chunk_tokens=CHUNK * 4, itl_target_ms=0))
    assert [len(piece.tokens) for piece in whole.plan().pieces] == [1, CHUNK * 4], "negative control: no target"


@dataclass
class Examined:
    """Prompts under examination; they take all the rows that they get."""

    left: int
    got: int = 0

    def pieces(self, budget: int, chunk: int) -> tuple[Piece, ...]:
        self.got = min(budget, chunk, self.left)
        return ()


@pytest.mark.parametrize(("chunk", "itl_target_ms", "size"), [(32, 80.0, FIRST_ROWS), (32, 0.0, 32), (1, 0.0, 1)])
def test_examinations_add_no_rows_to_a_step_that_has_its_size(chunk: int, itl_target_ms: float, size: int) -> None:
    around = Surroundings(pages=64)
    prompt = running(around, 1, tokens=100, filled=0)
    mine = planning(around, chunk_size=ChunkSize(chunk_tokens=chunk, itl_target_ms=itl_target_ms))
    examined = Examined(100)
    (piece,) = mine.plan(examined.pieces, examined.left).pieces
    assert 0 < examined.got and len(piece.tokens) + examined.got == max(2, size), "a row each at least"
    examined.left = 1
    (piece,) = mine.plan(examined.pieces, examined.left).pieces
    assert examined.got == 1 and len(piece.tokens) == max(1, size - 1), "they keep no more than they need"
    del around.requests[prompt.key]
    examined.left = 100
    assert mine.plan(examined.pieces, examined.left).pieces == () and examined.got == size, "nobody else needs them"


async def test_the_step_behind_names_the_token_that_is_not_read_yet() -> None:
    around = Surroundings()
    running(around, 1)
    mine = planning(around)
    plan = mine.plan()
    ahead = mine.follow(flight(around, plan))
    assert ahead is not None
    (piece,) = ahead.pieces
    assert (piece.follows, piece.tokens, piece.start, piece.position) == (True, (0,), 8, 1)
    assert mine.counts()["steps_ahead"] == 1


async def test_nothing_is_planned_ahead_of_a_prompt_a_new_request_or_the_end_of_the_text() -> None:
    around = Surroundings(pages=32)
    mine, one = planning(around), running(around, 1)
    alone = flight(around, mine.plan())
    running(around, 2)
    assert mine.follow(alone) is None, "a new request"
    del around.requests[2]
    running(around, 3, tokens=20, filled=0)
    assert mine.follow(flight(around, mine.plan())) is None, "a prompt"
    del around.requests[3]
    one.tokens += range(15)
    one.filled += 15
    assert mine.follow(flight(around, mine.plan())) is None, "the sixteenth of sixteen tokens"


async def test_nothing_is_planned_ahead_while_drafts_may_pay() -> None:
    around = Surroundings()
    running(around, 1)
    mine = planning(around, DraftSource.LOOKUP)
    assert mine.follow(flight(around, mine.plan())) is not None, "the first steps are plain"
    busy = Surroundings()
    running(busy, 1)
    fresh = planning(busy, DraftSource.LOOKUP)
    assert fresh.follow(flight(busy, Plan(1, ()))) is None, "no step has been planned: nothing is known of drafts"


def test_drafts_belong_to_the_cost_of_their_request_and_are_no_rows_of_prompts() -> None:
    measured = list[tuple[int, int]]()

    class Recording(ChunkSize):
        def measure(self, decoding: int, prompt: int, seconds: float) -> None:
            measured.append((decoding, prompt))

    mine = planning(Surroundings(), chunk_size=Recording(chunk_tokens=CHUNK, itl_target_ms=80.0))
    drafted = Piece(1, tuple(range(5)), start=7, pages=(0, 1, 2), sampled=5, sampling=Sampling())
    plain = Piece(2, (3,), start=7, pages=(3, 4), sampled=1, sampling=Sampling())
    prompt = Piece(3, tuple(range(6)), start=0, pages=(5, 6))
    mine.measure(Plan(1, (drafted, plain, prompt)), 0.02)
    assert measured == [(2, 6)]


def test_drafts_do_not_count_into_the_speed() -> None:
    around = Surroundings()
    running(around, 1, tokens=8, filled=0)
    mine = planning(around)
    mine.measure(mine.plan(), 0.5)
    assert mine.speeds().tokens_per_second == 16.0
