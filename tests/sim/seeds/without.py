"""Stand-ins for parts of the product: each does without one protection what the part does. tests/sim/seeds/removals.py
names the protections."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from decode_svc.handoff.landings import Landings
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.request.requests import DecodeRequest
from decode_svc.speculation.speculation import Speculation
from engine.pool.horizon import held
from engine.pool.pages import PagePool
from gateway.attaching.service import Gateway
from gateway.routing.costs import Need
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.sequencer import Sequencer
from gateway.sequencing.unread import UnreadTokens
from gateway.workers.attached import AttachedWorker
from kvtransfer.memory import MemoryReceiver
from mesh.messages.jobs import FullKind, Job, Ticket
from mesh.messages.kv_messages import Landed
from mesh.messages.orders import Cancel
from mesh.messages.reports import Register
from mesh.network.interface import StreamClosed
from mesh.sessions.attach import Attachments
from mesh.timing.pause import Pause
from prefill_svc.handoff import HandOff
from prefill_svc.links import Links
from prefill_svc.prompts import Prompt, PromptPhase, Prompts

_SETTLE = Prompts.settle
_ON_MESSAGE = HandOff.on_message
_LINK_ENDED = HandOff.link_ended
_ON_FULL = Sequencer.on_full
_ACCEPT = Sequencer.accept
_BEGIN, _JOB, _DRAIN = GatewayRequest.begin, GatewayRequest.job, Gateway.drain
_COMPUTED_IN = GatewayRequest.computed_in


def nothing(*arguments: Any, **named: Any) -> None:
    """Does not do what it should."""


def freed_at_once(landings: Landings, request: DecodeRequest, *, proof: bool = False, why: str = "") -> None:
    """The landing's pages are free, and its writer learns nothing."""
    if request.landing is not None:
        pages = request.landing.writable
        landings._pages.release(held(request.pages))
        landings._pages.unland(pages)
        request.landing, request.pages, request.hashes = None, [], []


async def always_silent(receiver: MemoryReceiver, writer: int, seconds: float) -> bool:
    return True


def settle_without_waiting(prompts: Prompts, prompt: Prompt) -> None:
    in_flight, prompt.in_flight = prompt.in_flight, 0
    _SETTLE(prompts, prompt)
    prompt.in_flight = in_flight


def keep_prompt(hand_off: HandOff, link: Any, message: Any) -> None:
    if not isinstance(message, Landed):
        _ON_MESSAGE(hand_off, link, message)


def held_for_ever(hand_off: HandOff, link: Any) -> None:
    kept = [p for p in hand_off._prompts.bound_for(link.address) if p.phase is PromptPhase.HELD]
    phases = [prompt.phase for prompt in kept]
    move(kept, PromptPhase.STOPPING)
    _LINK_ENDED(hand_off, link)
    for prompt, phase in zip(kept, phases, strict=True):
        prompt.phase = phase


def asked_for_ever(hand_off: HandOff, link: Any) -> None:
    kept = [p for p in hand_off._prompts.bound_for(link.address) if p.phase is PromptPhase.ASKED]
    move(kept, PromptPhase.STOPPING)
    _LINK_ENDED(hand_off, link)
    move(kept, PromptPhase.ASKED)


def move(prompts: list[Prompt], phase: PromptPhase) -> None:
    for prompt in prompts:
        prompt.phase = phase


async def dial_once(links: Links, link: Any) -> None:
    await links._session(link)


async def register_once(attachments: Attachments) -> None:
    for gateway in attachments._gateways:
        try:
            message = Register(attachments.address, attachments._hello.tier, attachments.incarnation)
            await attachments._network.register(gateway, message)
        except StreamClosed:
            pass


def full_is_dropped(sequencer: Sequencer, worker: AttachedWorker, full: Any) -> None:
    if full.kind is not FullKind.NOW:
        _ON_FULL(sequencer, worker, full)


def accept_all(speculation: Speculation, piece: Any, sampled: Any) -> Any:
    return sampled


def share_without_reference(pool: PagePool, pages: Any) -> None:
    for page in pages:
        pool._cached.pop(page, None)
        pool._state[page] = type(pool._state[page]).IN_USE


def any_partner(tokens: int, numerics: str, *more: Any) -> Need:
    return Need(tokens, "", *more)


def owes_since(quarantine: Quarantine, writer: int, since: float) -> float:
    """Only a proof shows that a writer lives."""
    return since


def end_silently(pause: Pause, then: Callable[[], None]) -> None:
    pause.over = True


def all_of(needing: Any, worker: AttachedWorker, *, others: bool = False) -> set[int]:
    return {request.id for request in needing}


def accept_without_deadline(sequencer: Sequencer, choice: Any) -> Any:
    return _ACCEPT(sequencer, replace(choice, deadline_seconds=None))


# ---- of a request that goes on elsewhere


def exactly(cancel: Cancel, ticket: Ticket) -> bool:
    return (cancel.request, cancel.attempt) == (ticket.request, ticket.attempt)


def begin_forgetful(request: GatewayRequest, ticket: Ticket, now: float) -> None:
    if request.shown:
        request.shown.pop()
        request.next_position -= 1
    _BEGIN(request, ticket, now)


def job_one_too_late(request: GatewayRequest, now: float) -> Job:
    job = _JOB(request, now)
    return replace(job, emitted=(*job.emitted, 0)) if request.shown else job


def job_one_too_early(request: GatewayRequest, now: float) -> Job:
    job = _JOB(request, now)
    return replace(job, emitted=job.emitted[:-1]) if request.shown else job


def pass_all(unread: UnreadTokens, token: int, made: Any) -> bool:
    return unread.express is not None and unread.express(token, made)


def same_class(request: GatewayRequest, numerics: str) -> bool:
    """Only the first class of an answer is noted."""
    return _COMPUTED_IN(request, request.numerics or numerics)


# ---- of processes that leave


def drain_refusing(gateway: Gateway, *, refusing: bool = True) -> None:
    _DRAIN(gateway, refusing=True)
