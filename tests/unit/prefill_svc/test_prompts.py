"""Prefill's prompts: legal moves, the order in which they go, and an end that waits for writes and for the step."""

import asyncio
import logging

import pytest

from mesh.messages.jobs import Reason
from mesh.messages.orders import Cancel
from mesh.messages.reports import Lost
from mesh.rules import RULES
from prefill_svc.prompts import PromptPhase
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import PrefillParts, order, pushing, quiet

LEGAL = {
    ("queued", "asked"),
    ("queued", "stopping"),
    ("asked", "queued"),
    ("asked", "pushing"),
    ("asked", "stopping"),
    ("pushing", "held"),
    ("pushing", "stopping"),
    ("held", "pushing"),
    ("held", "stopping"),
    ("stopping", "ended"),
}


@pytest.mark.parametrize("phase", list(PromptPhase))
@pytest.mark.parametrize("target", list(PromptPhase))
async def test_a_prompt_makes_legal_moves_only(phase: PromptPhase, target: PromptPhase) -> None:
    prompt = PrefillParts().queued()
    prompt.phase = phase
    if (phase.value, target.value) in LEGAL:
        prompt.enter(target)
        assert prompt.phase is target
    else:
        with pytest.raises(ValueError, match=f"no move from {phase.value} to {target.value}"):
            prompt.enter(target)


# ---- order


@virtual
async def test_prompts_go_in_the_order_in_which_they_came() -> None:
    parts = PrefillParts()
    for request in (3, 1, 2):
        parts.queued(request)
        await asyncio.sleep(0.01)
    assert order(parts) == [3, 1, 2]


@virtual
async def test_one_step_of_priority_is_worth_seconds_of_waiting() -> None:
    parts = PrefillParts()
    parts.queued(1)
    await asyncio.sleep(2 * RULES.priority_seconds)
    parts.queued(2, priority=-1)
    assert order(parts) == [1, 2], "two seconds of waiting outweigh one step of priority"
    parts.queued(3, priority=-3)
    assert order(parts) == [3, 1, 2]
    parts.queued(4, priority=5)
    await asyncio.sleep(6 * RULES.priority_seconds)
    parts.queued(5)
    assert order(parts) == [3, 1, 2, 4, 5], "a request of low priority does not starve"


async def test_prompts_that_came_together_go_in_the_order_of_their_request_ids() -> None:
    parts = PrefillParts()
    for request in (9, 4, 6):
        parts.queued(request).queued_seconds = 1.0
    parts.queued(1, priority=10**6)
    assert order(parts) == [4, 6, 9, 1]


async def test_what_the_cache_has_of_prompts_shortens_the_queue() -> None:
    parts = PrefillParts()
    first = parts.pages.take(range(16), b"")
    assert first is not None and parts.pages.fresh == 1.0
    parts.pages.publish(first, 16)
    for _ in range(20):
        again = parts.pages.take(range(16), b"")
        assert again is not None
        parts.pages.release(again)
    assert parts.pages.fresh < 0.3


# ---- ends


@virtual
async def test_quiet_and_the_pages_wait_for_the_last_write() -> None:
    parts, prompt = pushing()
    prompt.in_flight = 2
    parts.prompts.stop(prompt, quiet=True)
    prompt.in_flight = 1
    parts.prompts.settle(prompt)
    assert parts.decode.taken() == [] and parts.pool.counts().in_use == 2 and len(parts.prompts) == 1
    prompt.in_flight, woken = 0, parts.woken
    parts.prompts.settle(prompt)
    assert parts.decode.taken() == [quiet(prompt)] and parts.pool.counts().free == 16
    assert len(parts.prompts) == 0 and parts.woken == woken + 1


@virtual
async def test_quiet_does_not_wait_for_the_step_but_the_pages_do() -> None:
    parts, prompt = pushing()
    parts.prompts.stepping = {prompt.key}
    parts.prompts.stop(prompt, quiet=True)
    assert parts.decode.taken() == [quiet(prompt)] and parts.pool.counts().in_use == 2
    parts.prompts.stepping = set()
    parts.prompts.settle(prompt)
    assert parts.decode.taken() == [] and parts.pool.counts().free == 16


@virtual
async def test_a_prompt_that_stops_twice_remembers_that_quiet_is_due() -> None:
    parts, prompt = pushing()
    prompt.in_flight = 1
    parts.prompts.stop(prompt, quiet=False)
    parts.prompts.stop(prompt, quiet=True)
    prompt.in_flight = 0
    parts.prompts.settle(prompt)
    assert parts.decode.taken() == [quiet(prompt)]


async def test_a_cancel_drops_its_attempt_and_lower_ones_of_that_request_only() -> None:
    parts = PrefillParts()
    for attempt in (1, 2, 3):
        parts.queued(7, attempt=attempt)
    parts.queued(8)
    parts.prompts.cancel(Cancel(7, 2))
    assert [(p.ticket.request, p.ticket.attempt) for p in parts.prompts] == [(7, 3), (8, 1)]
    assert parts.decode.taken() == [], "no Landing was taken, so decode waits for no Quiet"


async def test_a_lost_prompt_tells_the_gateway_and_sends_no_quiet() -> None:
    parts, prompt = pushing()
    parts.prompts.lose(prompt, "write_failed")
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.CANNOT_PUSH)] and parts.decode.taken() == []
    assert parts.pool.counts().free == 16


async def test_a_stop_is_logged_as_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "baton.prefill")
    parts, prompt = pushing()
    prompt.done = 5
    parts.prompts.stop(prompt, quiet=False)
    (record,) = caplog.records
    facts = {name: vars(record)[name] for name in ("event", "request", "phase", "done", "total")}
    assert facts == {"event": "prompt_stopped", "request": 1, "phase": "pushing", "done": 5, "total": 8}
