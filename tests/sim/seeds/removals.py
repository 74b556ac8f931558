"""Removes one protection from the product: a rule of docs/protocol.md, a timer, or a move without which a request does
not end. Without any one of them the simulation must find a seed that fails; else no oracle watches that protection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from decode_svc import growth
from decode_svc.flights import Flights
from decode_svc.handoff.landings import Landings
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.room import Room
from decode_svc.handoff.spans import Spans
from decode_svc.intake import Intake
from decode_svc.requests import DecodeRequest, OpenLanding
from decode_svc.speculation.speculation import Speculation
from engine.pages import PagePool
from gateway import candidates, deaths
from gateway.attached import AttachedWorker
from gateway.attaching import Attaching
from gateway.costs import Need
from gateway.deaths import Deaths
from gateway.retries import Retries
from gateway.sequencer import Sequencer
from kvtransfer.memory import MemoryReceiver
from mesh.attach import Attachments
from mesh.jobs import FullKind
from mesh.kv_messages import Landed
from mesh.network import StreamClosed
from mesh.pause import Pause
from mesh.reports import Register
from mesh.rules import RULES, Rules
from prefill_svc.handoff import HandOff
from prefill_svc.links import Links
from prefill_svc.prompts import Prompt, PromptPhase, Prompts
from prefill_svc.worker import PrefillWorker
from tests.mutants import decode as decode_rules
from tests.mutants import gateway as gateway_rules
from tests.mutants import kvtransfer as transfer_rules
from tests.mutants import prefill as prefill_rules

Patch = Callable[[object, str, object], None]


@dataclass(frozen=True)
class Removal:
    """A protection that is missing."""

    what: str  # what the product does without it
    patch: Callable[[Patch], None] = lambda patch: None
    rules: Rules = RULES


def nothing(*arguments: Any, **named: Any) -> None:
    """Does not do what it should."""


def _off(target: object, name: str, instead: object = nothing) -> Callable[[Patch], None]:
    return lambda patch: patch(target, name, instead)


def _freed_at_once(landings: Landings, request: DecodeRequest, *, proof: bool = False, why: str = "") -> None:
    """The landing's pages are free, and its writer learns nothing."""
    if request.landing is not None:
        pages = request.landing.pages
        landings._pages.release(request.pages)
        landings._pages.unland(pages)
        request.landing, request.pages, request.hashes = None, [], []


async def _always_silent(receiver: MemoryReceiver, writer: int, seconds: float) -> bool:
    return True


def _settle_without_waiting(prompts: Prompts, prompt: Prompt) -> None:
    in_flight, prompt.in_flight = prompt.in_flight, 0
    _SETTLE(prompts, prompt)
    prompt.in_flight = in_flight


_SETTLE = Prompts.settle


def _keep_prompt(hand_off: HandOff, link: Any, message: Any) -> None:
    if not isinstance(message, Landed):
        _ON_MESSAGE(hand_off, link, message)


_ON_MESSAGE = HandOff.on_message


def _held_for_ever(hand_off: HandOff, link: Any) -> None:
    kept = [p for p in hand_off._prompts.bound_for(link.address) if p.phase is PromptPhase.HELD]
    phases = [prompt.phase for prompt in kept]
    _move(kept, PromptPhase.STOPPING)
    _LINK_ENDED(hand_off, link)
    for prompt, phase in zip(kept, phases, strict=True):
        prompt.phase = phase


def _asked_for_ever(hand_off: HandOff, link: Any) -> None:
    kept = [p for p in hand_off._prompts.bound_for(link.address) if p.phase is PromptPhase.ASKED]
    _move(kept, PromptPhase.STOPPING)
    _LINK_ENDED(hand_off, link)
    _move(kept, PromptPhase.ASKED)


_LINK_ENDED = HandOff.link_ended


def _move(prompts: list[Prompt], phase: PromptPhase) -> None:
    for prompt in prompts:
        prompt.phase = phase


async def _dial_once(links: Links, link: Any) -> None:
    await links._session(link)


async def _register_once(attachments: Attachments) -> None:
    for gateway in attachments._gateways:
        try:
            message = Register(attachments.address, attachments._hello.tier, attachments.incarnation)
            await attachments._network.register(gateway, message)
        except StreamClosed:
            pass


def _full_is_dropped(sequencer: Sequencer, worker: AttachedWorker, full: Any) -> None:
    if full.kind is not FullKind.NOW:
        _ON_FULL(sequencer, worker, full)


_ON_FULL = Sequencer.on_full


def _accept_all(speculation: Speculation, piece: Any, sampled: Any) -> Any:
    return sampled


def _share_without_reference(pool: PagePool, pages: Any) -> None:
    for page in pages:
        pool._cached.pop(page, None)
        pool._state[page] = type(pool._state[page]).IN_USE


def _any_partner(tokens: int, numerics: str, *more: Any) -> Need:
    return Need(tokens, "", *more)


def _owes_since(quarantine: Quarantine, writer: int, since: float) -> float:
    """Only a proof shows that a writer lives."""
    return since


def _end_silently(pause: Pause, then: Callable[[], None]) -> None:
    pause.over = True


def _all_of(needing: Any, worker: AttachedWorker, *, others: bool = False) -> set[int]:
    return {request.id for request in needing}


def _accept_without_deadline(sequencer: Sequencer, choice: Any) -> Any:
    return _ACCEPT(sequencer, replace(choice, deadline_seconds=None))


_ACCEPT = Sequencer.accept


REMOVALS: dict[str, Removal] = {
    # rules of docs/protocol.md, in the rooms that keep them
    "first": Removal("decode does not emit the token that prefill has sent", decode_rules.first),
    "resend_count": Removal("Commit of an earlier round counts", decode_rules.resend_count),
    "requiet at decode": Removal("decode does not repeat Abort", decode_rules.requiet),
    "requiet at prefill": Removal("prefill does not answer for unknown tickets", prefill_rules.requiet),
    "incarnation": Removal("Quiet of another process counts", decode_rules.incarnation),
    "early": Removal("a Ready that overtakes its Open is refused", decode_rules.early),
    "quarantine": Removal("pages of an ended landing are free at once", decode_rules.quarantine),
    "checksum": Removal("damaged spans are not noticed", decode_rules.checksum),
    "second copies": Removal(
        "a second copy of a frame changes a page that is valid", _off(OpenLanding, "frame_begins", lambda *frame: True)
    ),
    "attempt": Removal("tokens of an old attempt count", gateway_rules.any_attempt),
    "position": Removal("a token of any position is shown", gateway_rules.any_position),
    "sink": Removal("the second half of a frame goes into its page, whoever owns it", transfer_rules.without_sink),
    "one_ready": Removal("prefill repeats Ready, and accepts every Landing", prefill_rules.one_ready),
    "fence": Removal("a landing ends and its writer goes on", _off(Landings, "fence", _freed_at_once)),
    "lost": Removal("decode does not report a lost landing", _off(Landings, "_lose")),
    "proof": Removal("a session's end counts as proof", _off(MemoryReceiver, "silent", _always_silent)),
    "retire": Removal("workers do not learn that a request has ended", _off(Sequencer, "leave")),
    "preempt": Removal("no request gives way to an older one", _off(growth, "victim")),
    "count": Removal("a request larger than the pool is taken", _off(Room, "largest_need", lambda room, request: 0)),
    "together": Removal("workers that die beside others count", _off(Deaths, "_counts", lambda *a: True)),
    "suspects": Removal("a dead worker counts for requests that it has not begun", _off(deaths, "suspects", _all_of)),
    # timers
    "landing's progress": Removal("a landing without progress is never given up", _off(Landings, "_watch")),
    "lease": Removal("a silent peer is never given up", rules=replace(RULES, lease_seconds=inf)),
    "kill from quarantine": Removal("a silent writer is never killed", _off(MemoryReceiver, "kill", lambda *a: True)),
    "heartbeats of a writer": Removal(
        "a writer that lives is killed for one stuck write", _off(Quarantine, "_silent_since", _owes_since)
    ),
    "settling": Removal(
        "a gateway that has just started refuses a class",
        rules=replace(RULES, settling_seconds=0),
    ),
    "deadline": Removal("requests outlive their deadline", _off(Sequencer, "accept", _accept_without_deadline)),
    "pauses": Removal("nobody is woken when a pause is over", _off(Pause, "_end", _end_silently)),
    # what an end depends on
    "dead gateway at decode": Removal("decode keeps the requests of a dead gateway", _off(Intake, "gateway_ended")),
    "dead gateway at prefill": Removal(
        "prefill keeps the prompts of a dead gateway", _off(PrefillWorker, "_gateway_ended")
    ),
    "session's end at the gateway": Removal(
        "requests of a worker that is gone get no other", _off(Sequencer, "on_session_end")
    ),
    "worker is forgotten": Removal("a worker that is gone gets requests", _off(Attaching, "on_session_end")),
    "Lost": Removal("the gateway does not answer Lost with the next attempt", _off(Sequencer, "on_lost")),
    "Full": Removal("the gateway does not answer Full(now)", _off(Sequencer, "on_full", _full_is_dropped)),
    "retries": Removal("requests that wait are never tried again", _off(Retries, "start")),
    "paused": Removal("a paused request never goes on", _off(Sequencer, "on_drained")),
    "Cancel at decode": Removal("decode ignores Cancel", _off(Intake, "_cancel")),
    "Cancel at prefill": Removal("prefill ignores Cancel", _off(Prompts, "cancel")),
    "Landed": Removal("prefill keeps its pages though decode has all", _off(HandOff, "on_message", _keep_prompt)),
    "held at a session's end": Removal(
        "committed prompts outlive the session", _off(HandOff, "link_ended", _held_for_ever)
    ),
    "asked at a session's end": Removal(
        "a prompt waits for the answer of an ended session", _off(HandOff, "link_ended", _asked_for_ever)
    ),
    "redial": Removal("prefill dials a decode worker once", _off(Links, "_keep", _dial_once)),
    "register again": Removal("a worker registers once", _off(Attachments, "register", _register_once)),
    "unreachable": Removal("prompts wait for ever for decode", _off(HandOff, "link_unreachable")),
    "repair": Removal("missing and damaged spans are not asked for again", _off(Spans, "_resend")),
    "writes in flight": Removal(
        "pages are free, and Quiet goes out, while writes are in flight",
        _off(Prompts, "settle", _settle_without_waiting),
    ),
    "steps in flight": Removal(
        "pages are free while a step writes them", _off(Flights, "keep", lambda flights, request, pages: False)
    ),
    "references": Removal("shared pages are not counted", _off(PagePool, "share", _share_without_reference)),
    "copy on write": Removal("a step writes a page that others read", _off(PagePool, "writable", lambda *a: True)),
    "tenants": Removal("a tenant gets pages as another one left them", _off(PagePool, "_hand_over")),
    "class": Removal("an answer goes on in any numerics class", _off(candidates, "Need", _any_partner)),
    "verification": Removal("drafts count unverified", _off(Speculation, "verified", _accept_all)),
}


@contextmanager
def removed(name: str) -> Iterator[Rules]:
    """While this lasts the product lacks one protection."""
    before = list[tuple[object, str, object]]()

    def patch(target: object, attribute: str, value: object) -> None:
        before.append((target, attribute, vars(target)[attribute]))
        setattr(target, attribute, value)

    removal = REMOVALS[name]
    try:
        removal.patch(patch)
        yield removal.rules
    finally:
        for target, attribute, value in reversed(before):
            setattr(target, attribute, value)
