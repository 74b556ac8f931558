"""Decides what the next step holds, and when the step behind it is known already."""

import asyncio
from typing import Any

from decode_svc.flights import Flight
from decode_svc.growth import Growth
from decode_svc.planning import Planning
from decode_svc.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.speculation import DraftSource, Speculation
from engine.plan import Plan
from tests.unit.decode_svc.fakes import PAGE, Surroundings

CHUNK = 8


def planning(around: Surroundings, source: DraftSource = DraftSource.OFF) -> Planning:
    speculation = Speculation(source, draft_tokens=4, chunk_tokens=CHUNK, page_tokens=PAGE, context_tokens=100)
    growth = Growth(around.requests, around.pages, page_tokens=PAGE, numerics="class a", host=around.host)
    return Planning(around.requests, growth, speculation, page_tokens=PAGE, chunk_tokens=CHUNK)


def running(around: Surroundings, key: int, *, tokens: int = 8, filled: int | None = None) -> DecodeRequest:
    one = around.add(key, tokens=tokens, opened=float(key), phase=DecodePhase.RUNNING)
    pages = around.pages.take(-(-tokens // PAGE))
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


def test_drafts_do_not_count_into_the_speed() -> None:
    around = Surroundings()
    running(around, 1, tokens=8, filled=0)
    mine = planning(around)
    mine.measure(mine.plan(), 0.5)
    assert mine.tokens_per_second == 16.0
