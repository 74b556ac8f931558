"""Prefill's prompts and time: those whose turn comes too late are given back, and a client's deadline ends them."""

import asyncio

from mesh.messages.jobs import Reason
from mesh.messages.reports import Lost
from prefill_svc.prompts import DUE_SECONDS, PromptPhase
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import PrefillParts, order, pushing, quiet


@virtual
async def test_a_near_deadline_makes_a_prompt_older_but_not_for_ever() -> None:
    parts = PrefillParts()
    parts.queued(1)
    await asyncio.sleep(1.0)
    parts.queued(2, deadline_seconds=4.0)
    parts.queued(3, deadline_seconds=60.0)
    assert order(parts) == [2, 1, 3]
    await asyncio.sleep(DUE_SECONDS)
    parts.queued(4, deadline_seconds=0.5)
    assert order(parts) == [1, 3, 4], "prompt 2 was dropped at its deadline"


# ---- late prompts


@virtual
async def test_a_prompt_whose_turn_does_not_come_in_time_is_given_back() -> None:
    parts = PrefillParts()
    prompt = parts.queued(1, start_seconds=2.0)
    patient = parts.queued(2)
    await asyncio.sleep(1.9)
    assert parts.gateway.taken() == []
    await asyncio.sleep(0.2)
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.LATE)]
    assert order(parts) == [patient.ticket.request]


@virtual
async def test_a_prompt_that_has_its_pages_is_not_given_back_and_one_that_asks_for_them_only_if_it_gets_none() -> None:
    parts = PrefillParts()
    parts.queued(1, start_seconds=2.0)
    parts.handoff.ask()
    asked = parts.prompts[1]
    assert asked.phase is PromptPhase.ASKED
    await asyncio.sleep(2.05)
    assert parts.gateway.taken() == []
    asked.enter(PromptPhase.QUEUED)
    await asyncio.sleep(0.2)
    assert parts.gateway.taken() == [Lost(asked.ticket, Reason.LATE)]


@virtual
async def test_a_prompt_that_cannot_meet_its_deadline_is_given_back_before_it() -> None:
    parts = PrefillParts()
    parts.prompts.load(tokens_per_second=1.0)
    prompt = parts.queued(1, deadline_seconds=10.0)
    await asyncio.sleep(10.0 - prompt.total / 2 - 0.1)
    assert parts.gateway.taken() == []
    await asyncio.sleep(0.2)
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.LATE)]


# ---- the client's deadline


@virtual
async def test_a_queued_prompt_whose_deadline_passes_ends_without_a_message() -> None:
    parts = PrefillParts()
    parts.queued(deadline_seconds=3.0)
    await asyncio.sleep(2.9)
    assert len(parts.prompts) == 1
    await asyncio.sleep(0.2)
    assert len(parts.prompts) == 0 and parts.gateway.taken() == [] and parts.decode.sent == []


@virtual
async def test_an_asked_prompt_whose_deadline_passes_ends_and_its_late_landing_is_answered_quiet() -> None:
    parts = PrefillParts()
    prompt = parts.asked(deadline_seconds=3.0)
    await asyncio.sleep(3.1)
    assert len(parts.prompts) == 0 and parts.decode.sent == []
    parts.handoff.on_message(parts.link, parts.landing(prompt))
    assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []


@virtual
async def test_a_pushing_prompt_whose_deadline_passes_answers_quiet_after_its_last_write() -> None:
    parts, prompt = pushing(deadline_seconds=3.0)
    parts.compute(prompt)
    await asyncio.sleep(3.1)
    assert prompt.phase is PromptPhase.STOPPING and quiet(prompt) not in parts.decode.taken()
    await parts.writer.complete()
    assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []
    assert len(parts.prompts) == 0 and parts.pool.counts().in_use == 0


@virtual
async def test_a_held_prompt_whose_deadline_passes_answers_quiet_and_frees_its_pages() -> None:
    parts = PrefillParts()
    prompt = await parts.held(deadline_seconds=3.0)
    await asyncio.sleep(3.1)
    assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []
    assert len(parts.prompts) == 0 and parts.pool.counts().in_use == 0


@virtual
async def test_the_deadline_of_a_prompt_that_has_ended_does_nothing() -> None:
    parts = PrefillParts()
    prompt = parts.queued(deadline_seconds=3.0)
    parts.prompts.drop(prompt)
    assert prompt.phase is PromptPhase.ENDED
    await asyncio.sleep(3.1)
    assert prompt.phase is PromptPhase.ENDED and parts.decode.sent == []
