"""Prefill's half of the talk with decode: when it asks, and what it does with each answer."""

import asyncio

import pytest

from mesh.messages.jobs import Reason, Ticket
from mesh.messages.kv_messages import Abort, Landed, Landing, Later, Quiet, Ready, Resend
from mesh.messages.reports import Lost
from mesh.rules import RULES
from prefill_svc.prompts import Prompt, PromptPhase
from tests.mutants.prefill import MUTANTS
from tests.sim.loop import run_virtual, virtual
from tests.unit.prefill_svc.parts import OWN_INCARNATION, PrefillParts, pushing

UNKNOWN = Ticket(99, 1, bytes(16))


def quiet(prompt: Prompt) -> Quiet:
    return Quiet(prompt.ticket, OWN_INCARNATION)


# ---- Ready


async def test_ready_goes_out_for_prompts_whose_turn_is_near() -> None:
    parts = PrefillParts(ahead_tokens=12)
    prompts = [parts.queued(request, tokens=8) for request in (1, 2, 3)]
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(prompt.ticket) for prompt in prompts[:2]], "16 tokens are ahead of the third"
    assert parts.pool.counts().free == 16, "nothing is reserved"


async def test_the_more_senior_prompt_asks_first() -> None:
    parts = PrefillParts(ahead_tokens=8)
    parts.queued(1)
    urgent = parts.queued(2, priority=-60)
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(urgent.ticket)]


async def test_a_prompt_that_has_no_room_lets_a_smaller_one_pass() -> None:
    parts = PrefillParts(3)
    parts.pushing_prompt(1, tokens=4)
    parts.queued(2, tokens=12)
    small = parts.queued(3, tokens=8)
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(small.ticket)]


async def test_a_prompt_leaves_an_older_examination_its_pages_and_is_known_to_wait_for_its_own() -> None:
    """With no page reserved, the negative control, the same prompt asks."""
    parts = PrefillParts(4)
    prompt = parts.queued(tokens=12)  # three pages
    parts.reserved = 2
    parts.handoff.ask()
    assert parts.decode.taken() == [] and parts.handoff.starved == (parts.prompts.seniority(prompt), 3)
    parts.reserved = 0
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(prompt.ticket)] and parts.handoff.starved is None


async def test_no_ready_goes_to_a_decode_worker_that_is_not_the_one_the_gateway_named() -> None:
    parts = PrefillParts()
    parts.queued(incarnation=1)
    parts.handoff.ask()
    assert parts.decode.taken() == []


async def test_no_ready_is_sent_without_a_session() -> None:
    parts = PrefillParts()
    prompt = parts.queued()
    parts.link.session = None
    parts.handoff.ask()
    assert prompt.phase is PromptPhase.QUEUED


@virtual
async def test_after_later_a_prompt_lets_others_pass_and_asks_again() -> None:
    parts = PrefillParts(ahead_tokens=8)
    first = parts.asked(1)
    second = parts.queued(2)
    parts.handoff.on_message(parts.link, Later(first.ticket))
    assert first.phase is PromptPhase.QUEUED
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(second.ticket)]
    parts.handoff.on_message(parts.link, Later(second.ticket))
    woken = parts.woken
    await asyncio.sleep(RULES.again_seconds)
    assert parts.woken > woken, "the loop is woken to ask again"
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(first.ticket)]


class AskingParts(PrefillParts):
    """A hand-off whose host, like the worker's loop, asks for prompts as soon as it is woken."""

    def wake(self) -> None:
        self.handoff.ask()


def test_a_prompt_that_got_later_asks_again_though_its_timer_fires_early() -> None:
    async def main() -> None:
        parts = AskingParts()
        prompt = parts.asked()
        parts.handoff.on_message(parts.link, Later(prompt.ticket))
        await asyncio.sleep(2 * RULES.again_seconds)
        assert parts.decode.taken() == [Ready(prompt.ticket)]

    run_virtual(main(), early_seconds=5e-10)


def test_other_prompts_pass_a_silent_one_though_its_timer_fires_early() -> None:
    async def main() -> None:
        parts = AskingParts(ahead_tokens=8)
        parts.asked(1)
        other = parts.queued(2)
        await asyncio.sleep(2 * RULES.ready_seconds)
        assert parts.decode.taken() == [Ready(other.ticket)]

    run_virtual(main(), early_seconds=5e-10)


@virtual
async def test_silence_lets_other_prompts_pass_but_no_second_ready_goes_out() -> None:
    parts = PrefillParts(ahead_tokens=8)
    silent, other = parts.asked(1), parts.queued(2)
    parts.handoff.ask()
    assert parts.decode.taken() == [], "the answer may still come"
    await asyncio.sleep(2 * RULES.ready_seconds)
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(other.ticket)] and silent.phase is PromptPhase.ASKED


@virtual
async def test_without_the_rule_one_ready_a_second_ready_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["one_ready"](monkeypatch.setattr)
    parts = PrefillParts()
    silent = parts.asked(1)
    await asyncio.sleep(2 * RULES.ready_seconds)
    parts.handoff.ask()
    assert parts.decode.taken() == [Ready(silent.ticket)]


# ---- Landing


async def test_a_landing_takes_pages_and_begins_to_push() -> None:
    parts = PrefillParts()
    prompt = parts.asked(tokens=10)
    parts.handoff.on_message(parts.link, parts.landing(prompt))
    assert prompt.phase is PromptPhase.PUSHING and len(prompt.own.pages) == 3 and prompt.computing


async def test_a_landing_for_which_no_room_is_left_is_declined_with_quiet() -> None:
    parts = PrefillParts(4)
    prompt = parts.asked(1, tokens=8)
    taken = parts.pool.take(3, b"")
    parts.handoff.on_message(parts.link, parts.landing(prompt))
    assert prompt.phase is PromptPhase.QUEUED and prompt.landing is None and parts.decode.taken() == [quiet(prompt)]
    assert taken is not None
    parts.pool.release(taken)
    parts.handoff.ask()
    assert parts.decode.taken() == [], "it asks again after a while"


async def test_a_landing_that_answers_no_ready_is_ignored() -> None:
    parts = PrefillParts()
    prompt = parts.queued()
    parts.handoff.on_message(parts.link, parts.landing(prompt))
    assert prompt.phase is PromptPhase.QUEUED and parts.pool.counts().in_use == 0


async def test_a_landing_for_a_prompt_that_stops_is_answered_with_quiet_after_its_writes() -> None:
    parts, prompt = pushing()
    prompt.in_flight = 1
    parts.prompts.stop(prompt, quiet=False)
    parts.handoff.on_message(parts.link, parts.landing(prompt))
    assert parts.decode.taken() == []
    prompt.in_flight = 0
    parts.prompts.settle(prompt)
    assert parts.decode.taken() == [quiet(prompt)]


# ---- ends


async def test_landed_ends_the_prompt_and_its_pages_stay_cached() -> None:
    parts = PrefillParts()
    prompt = await parts.held()
    parts.pages.publish(prompt.own, prompt.done)
    parts.handoff.on_message(parts.link, Landed(prompt.ticket))
    assert len(parts.prompts) == 0 and parts.decode.taken() == []
    assert (parts.pool.counts().cached, parts.pool.counts().in_use) == (2, 0)


async def test_abort_is_answered_with_quiet_once_no_write_is_in_flight() -> None:
    parts, prompt = pushing()
    parts.compute(prompt)
    parts.handoff.on_message(parts.link, Abort(prompt.ticket))
    assert parts.decode.taken() == []
    await parts.writer.complete()
    assert parts.decode.taken() == [quiet(prompt)] and parts.pool.counts().in_use == 0


MESSAGES_FOR_AN_UNKNOWN_TICKET = [Abort(UNKNOWN), Landing(UNKNOWN, 0, (1,)), Resend(UNKNOWN, 1, 0, 1, (0,))]


@pytest.mark.parametrize("message", MESSAGES_FOR_AN_UNKNOWN_TICKET)
async def test_a_message_for_an_unknown_ticket_is_answered_with_quiet(message: Abort | Landing | Resend) -> None:
    parts = PrefillParts()
    parts.handoff.on_message(parts.link, message)
    assert parts.decode.taken() == [Quiet(UNKNOWN, OWN_INCARNATION)]


@pytest.mark.parametrize("message", MESSAGES_FOR_AN_UNKNOWN_TICKET)
async def test_without_the_rule_requiet_an_unknown_ticket_stays_unanswered(
    message: Abort | Landing | Resend, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS["requiet"](monkeypatch.setattr)
    parts = PrefillParts()
    parts.handoff.on_message(parts.link, message)
    assert parts.decode.taken() == []


async def test_later_and_landed_for_an_unknown_ticket_need_no_answer() -> None:
    parts = PrefillParts()
    parts.handoff.on_message(parts.link, Later(UNKNOWN))
    parts.handoff.on_message(parts.link, Landed(UNKNOWN))
    assert parts.decode.taken() == []


async def test_when_the_session_ends_each_prompt_goes_on_from_where_it_stands() -> None:
    parts = PrefillParts()
    held, pushing = await parts.held(1), parts.pushing_prompt(2)
    asked, queued = parts.asked(3), parts.queued(4)
    parts.handoff.link_ended(parts.link)
    assert asked.phase is queued.phase is PromptPhase.QUEUED, "they ask again in the next session"
    assert parts.gateway.taken() == [Lost(pushing.ticket, Reason.CANNOT_PUSH)]
    assert held.phase is pushing.phase is PromptPhase.ENDED and parts.pool.counts().in_use == 0


async def test_pages_outlive_the_session_until_their_write_has_completed() -> None:
    parts = PrefillParts()
    parts.compute(parts.pushing_prompt())
    await asyncio.sleep(0)
    parts.handoff.link_ended(parts.link)
    assert parts.pool.counts().in_use == 2
    await parts.writer.complete()
    assert parts.pool.counts().in_use == 0 and len(parts.prompts) == 0


@virtual
async def test_prompts_that_cannot_reach_decode_for_a_lease_go_back_to_the_gateway() -> None:
    parts = PrefillParts()
    first = parts.queued(1)
    await asyncio.sleep(RULES.lease_seconds - 0.1)
    parts.queued(2)
    parts.handoff.link_unreachable(parts.link)
    assert parts.gateway.taken() == []
    await asyncio.sleep(0.2)
    parts.handoff.link_unreachable(parts.link)
    assert parts.gateway.taken() == [Lost(first.ticket, Reason.CANNOT_PUSH)]
    parts.link.ended_seconds = asyncio.get_running_loop().time()
    await asyncio.sleep(RULES.lease_seconds - 0.1)
    parts.handoff.link_unreachable(parts.link)
    assert parts.gateway.taken() == [], "the session ended less than a lease ago"
