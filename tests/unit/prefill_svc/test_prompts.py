"""Prefill's prompts: legal moves, the order in which they go, and an end that waits for writes and for the step."""

import asyncio
import logging

import pytest

from mesh.messages import Lost, Quiet, Reason
from mesh.rules import RULES
from prefill_svc.prompts import DUE_SECONDS, Prompt, PromptPhase
from tests.sim.loop import run_virtual
from tests.unit.prefill_svc.parts import OWN_INCARNATION, PrefillParts

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


def order(parts: PrefillParts) -> list[int]:
    return [prompt.ticket.request for prompt in parts.prompts]


def test_prompts_go_in_the_order_in_which_they_came() -> None:
    async def main() -> None:
        parts = PrefillParts()
        for request in (3, 1, 2):
            parts.queued(request)
            await asyncio.sleep(0.01)
        assert order(parts) == [3, 1, 2]

    run_virtual(main())


def test_one_step_of_priority_is_worth_seconds_of_waiting() -> None:
    async def main() -> None:
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

    run_virtual(main())


async def test_prompts_that_came_together_go_in_the_order_of_their_request_ids() -> None:
    parts = PrefillParts()
    for request in (9, 4, 6):
        parts.queued(request).queued_seconds = 1.0
    parts.queued(1, priority=10**6)
    assert order(parts) == [4, 6, 9, 1]


def test_a_near_deadline_makes_a_prompt_older_but_not_for_ever() -> None:
    async def main() -> None:
        parts = PrefillParts()
        parts.queued(1)
        await asyncio.sleep(1.0)
        parts.queued(2, deadline_seconds=4.0)
        parts.queued(3, deadline_seconds=60.0)
        assert order(parts) == [2, 1, 3]
        await asyncio.sleep(DUE_SECONDS)
        parts.queued(4, deadline_seconds=0.5)
        assert order(parts) == [1, 3, 4], "prompt 2 was dropped at its deadline"

    run_virtual(main())


# ---- late prompts


def test_a_prompt_whose_turn_does_not_come_in_time_is_given_back() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.queued(1, start_seconds=2.0)
        patient = parts.queued(2)
        await asyncio.sleep(1.9)
        assert parts.gateway.taken() == []
        await asyncio.sleep(0.2)
        assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.LATE)]
        assert order(parts) == [patient.ticket.request]

    run_virtual(main())


def test_a_prompt_that_has_its_pages_is_not_given_back_and_one_that_asks_for_them_only_if_it_gets_none() -> None:
    async def main() -> None:
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

    run_virtual(main())


def test_a_prompt_that_cannot_meet_its_deadline_is_given_back_before_it() -> None:
    async def main() -> None:
        parts = PrefillParts()
        parts.prompts.load(tokens_per_second=1.0)
        prompt = parts.queued(1, deadline_seconds=10.0)
        await asyncio.sleep(10.0 - prompt.total / 2 - 0.1)
        assert parts.gateway.taken() == []
        await asyncio.sleep(0.2)
        assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.LATE)]

    run_virtual(main())


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


def quiet(prompt: Prompt) -> Quiet:
    return Quiet(prompt.ticket, OWN_INCARNATION)


def test_quiet_and_the_pages_wait_for_the_last_write() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.pushing_prompt()
        prompt.in_flight = 2
        parts.prompts.stop(prompt, quiet=True)
        prompt.in_flight = 1
        parts.prompts.settle(prompt)
        assert parts.decode.taken() == [] and parts.pool.counts().in_use == 2 and len(parts.prompts) == 1
        prompt.in_flight, woken = 0, parts.woken
        parts.prompts.settle(prompt)
        assert parts.decode.taken() == [quiet(prompt)] and parts.pool.counts().free == 16
        assert len(parts.prompts) == 0 and parts.woken == woken + 1

    run_virtual(main())


def test_quiet_does_not_wait_for_the_step_but_the_pages_do() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.pushing_prompt()
        parts.prompts.stepping = {prompt.key}
        parts.prompts.stop(prompt, quiet=True)
        assert parts.decode.taken() == [quiet(prompt)] and parts.pool.counts().in_use == 2
        parts.prompts.stepping = set()
        parts.prompts.settle(prompt)
        assert parts.decode.taken() == [] and parts.pool.counts().free == 16

    run_virtual(main())


def test_a_prompt_that_stops_twice_remembers_that_quiet_is_due() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.pushing_prompt()
        prompt.in_flight = 1
        parts.prompts.stop(prompt, quiet=False)
        parts.prompts.stop(prompt, quiet=True)
        prompt.in_flight = 0
        parts.prompts.settle(prompt)
        assert parts.decode.taken() == [quiet(prompt)]

    run_virtual(main())


async def test_a_cancel_drops_its_attempt_and_lower_ones_of_that_request_only() -> None:
    parts = PrefillParts()
    for attempt in (1, 2, 3):
        parts.queued(7, attempt=attempt)
    parts.queued(8)
    parts.prompts.cancel(7, 2)
    assert [(p.ticket.request, p.ticket.attempt) for p in parts.prompts] == [(7, 3), (8, 1)]
    assert parts.decode.taken() == [], "no Landing was taken, so decode waits for no Quiet"


async def test_a_lost_prompt_tells_the_gateway_and_sends_no_quiet() -> None:
    parts = PrefillParts()
    prompt = parts.pushing_prompt()
    parts.prompts.lose(prompt, "write_failed")
    assert parts.gateway.taken() == [Lost(prompt.ticket, Reason.CANNOT_PUSH)] and parts.decode.taken() == []
    assert parts.pool.counts().free == 16


async def test_a_stop_is_logged_as_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "baton.prefill")
    parts = PrefillParts()
    prompt = parts.pushing_prompt()
    prompt.done = 5
    parts.prompts.stop(prompt, quiet=False)
    (record,) = caplog.records
    facts = {name: vars(record)[name] for name in ("event", "request", "phase", "done", "total")}
    assert facts == {"event": "prompt_stopped", "request": 1, "phase": "pushing", "done": 5, "total": 8}


# ---- the client's deadline


def test_a_queued_prompt_whose_deadline_passes_ends_without_a_message() -> None:
    async def main() -> None:
        parts = PrefillParts()
        parts.queued(deadline_seconds=3.0)
        await asyncio.sleep(2.9)
        assert len(parts.prompts) == 1
        await asyncio.sleep(0.2)
        assert len(parts.prompts) == 0 and parts.gateway.taken() == [] and parts.decode.sent == []

    run_virtual(main())


def test_an_asked_prompt_whose_deadline_passes_ends_and_its_late_landing_is_answered_quiet() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.asked(deadline_seconds=3.0)
        await asyncio.sleep(3.1)
        assert len(parts.prompts) == 0 and parts.decode.sent == []
        parts.handoff.on_message(parts.link, parts.landing(prompt))
        assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []

    run_virtual(main())


def test_a_pushing_prompt_whose_deadline_passes_answers_quiet_after_its_last_write() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.pushing_prompt(deadline_seconds=3.0)
        parts.compute(prompt)
        await asyncio.sleep(3.1)
        assert prompt.phase is PromptPhase.STOPPING and quiet(prompt) not in parts.decode.taken()
        await parts.writer.complete()
        assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []
        assert len(parts.prompts) == 0 and parts.pool.counts().in_use == 0

    run_virtual(main())


def test_a_held_prompt_whose_deadline_passes_answers_quiet_and_frees_its_pages() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = await parts.held(deadline_seconds=3.0)
        await asyncio.sleep(3.1)
        assert parts.decode.taken() == [quiet(prompt)] and parts.gateway.taken() == []
        assert len(parts.prompts) == 0 and parts.pool.counts().in_use == 0

    run_virtual(main())


def test_the_deadline_of_a_prompt_that_has_ended_does_nothing() -> None:
    async def main() -> None:
        parts = PrefillParts()
        prompt = parts.queued(deadline_seconds=3.0)
        parts.prompts.drop(prompt)
        assert prompt.phase is PromptPhase.ENDED
        await asyncio.sleep(3.1)
        assert prompt.phase is PromptPhase.ENDED and parts.decode.sent == []

    run_virtual(main())
