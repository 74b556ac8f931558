"""Removes one protection from the product: a rule of docs/protocol.md, a timer, or a move without which a request does
not end. Without any one of them the simulation must find a seed that fails; else no oracle watches that protection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

from cli.local_mesh.signs_of_life import LifeJudge
from decode_svc import growth
from decode_svc.flights import Flights
from decode_svc.handoff.landings import Landings
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.room import Room
from decode_svc.handoff.spans import Spans
from decode_svc.intake import Intake
from decode_svc.request.requests import OpenLanding
from decode_svc.speculation.speculation import Speculation
from engine.pool.pages import PagePool
from gateway.attaching import attaching
from gateway.attaching.attaching import Attaching
from gateway.attaching.handing_over import HandingOver
from gateway.attaching.hung_workers import HungWorkers
from gateway.attaching.service import Gateway
from gateway.sequencing import candidates, deaths
from gateway.sequencing.deaths import Deaths
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.retries import Retries
from gateway.sequencing.sequencer import Sequencer
from gateway.sequencing.unread import UnreadTokens
from gateway.workers.attached import AttachedWorker
from kvtransfer.memory import MemoryReceiver
from mesh.messages.orders import Cancel
from mesh.rules import RULES, Rules
from mesh.sessions.attach import Attachments
from mesh.sessions.watchdog import Watchdog
from mesh.timing.pause import Pause
from prefill_svc.handoff import HandOff
from prefill_svc.links import Links
from prefill_svc.prompts import Prompts
from prefill_svc.worker import PrefillWorker
from tests.mutants import decode as decode_rules
from tests.mutants import gateway as gateway_rules
from tests.mutants import kvtransfer as transfer_rules
from tests.mutants import prefill as prefill_rules
from tests.sim.seeds import without

Patch = Callable[[object, str, object], None]


@dataclass(frozen=True)
class Removal:
    """A protection that is missing."""

    what: str  # what the product does without it
    patch: Callable[[Patch], None] = lambda patch: None
    rules: Rules = RULES


def _off(target: object, name: str, instead: object = without.nothing) -> Callable[[Patch], None]:
    return lambda patch: patch(target, name, instead)


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
    "behind": Removal("a page is given back whose last slot is still read", decode_rules.behind),
    "kept": Removal("pages of layers without windows are given back too", decode_rules.kept),
    "second copies": Removal(
        "a second copy of a frame changes a page that is valid", _off(OpenLanding, "frame_begins", lambda *frame: True)
    ),
    "attempt": Removal("tokens of an old attempt count", gateway_rules.any_attempt),
    "position": Removal("a token of any position is shown", gateway_rules.any_position),
    "order": Removal(
        "a token passes those that its reader has not taken", _off(UnreadTokens, "passes", without.pass_all)
    ),
    "class of a token": Removal(
        "a token that comes from another class counts as one of the class before",
        _off(GatewayRequest, "computed_in", without.same_class),
    ),
    "sink": Removal("the second half of a frame goes into its page, whoever owns it", transfer_rules.without_sink),
    "one_ready": Removal("prefill repeats Ready, and accepts every Landing", prefill_rules.one_ready),
    "fence": Removal("a landing ends and its writer goes on", _off(Landings, "fence", without.freed_at_once)),
    "lost": Removal("decode does not report a lost landing", _off(Landings, "_lose")),
    "proof": Removal("a session's end counts as proof", _off(MemoryReceiver, "silent", without.always_silent)),
    "retire": Removal("workers do not learn that a request has ended", _off(Sequencer, "leave")),
    "preempt": Removal("no request gives way to an older one", _off(growth, "victim")),
    "count": Removal("a request larger than the pool is taken", _off(Room, "largest_need", lambda room, request: 0)),
    "together": Removal("workers that die beside others count", _off(Deaths, "_counts", lambda *a: True)),
    "suspects": Removal(
        "a dead worker counts for requests that it has not begun", _off(deaths, "suspects", without.all_of)
    ),
    # timers
    "landing's progress": Removal("a landing without progress is never given up", _off(Landings, "_watch")),
    "lease": Removal("a silent peer is never given up", rules=replace(RULES, lease_seconds=inf)),
    "kill from quarantine": Removal("a silent writer is never killed", _off(MemoryReceiver, "kill", lambda *a: True)),
    "heartbeats of a writer": Removal(
        "a writer that lives is killed for one stuck write", _off(Quarantine, "_silent_since", without.owes_since)
    ),
    "settling": Removal(
        "a gateway that has just started refuses a class",
        rules=replace(RULES, settling_seconds=0),
    ),
    "deadline": Removal("requests outlive their deadline", _off(Sequencer, "accept", without.accept_without_deadline)),
    "pauses": Removal("nobody is woken when a pause is over", _off(Pause, "_end", without.end_silently)),
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
    "Full": Removal("the gateway does not answer Full(now)", _off(Sequencer, "on_full", without.full_is_dropped)),
    "retries": Removal("requests that wait are never tried again", _off(Retries, "start")),
    "paused": Removal("a paused request never goes on", _off(Sequencer, "on_drained")),
    "Cancel at decode": Removal("decode ignores Cancel", _off(Intake, "_cancel")),
    "Cancel at prefill": Removal("prefill ignores Cancel", _off(Prompts, "cancel")),
    "Cancel of lower attempts": Removal(
        "Cancel concerns the attempt that it names and no lower one", _off(Cancel, "concerns", without.exactly)
    ),
    "incarnation lives": Removal(
        "a gateway takes a process whose incarnation is attached", _off(attaching, "living_elsewhere", lambda w: "")
    ),
    "resume forgets": Removal(
        "a gateway forgets the last token that it has shown when an attempt begins",
        _off(GatewayRequest, "begin", without.begin_forgetful),
    ),
    "resume skips": Removal(
        "the next attempt begins one position too late", _off(GatewayRequest, "job", without.job_one_too_late)
    ),
    "resume samples again": Removal(
        "the next attempt samples the last token that the client has again",
        _off(GatewayRequest, "job", without.job_one_too_early),
    ),
    "Landed": Removal(
        "prefill keeps its pages though decode has all", _off(HandOff, "on_message", without.keep_prompt)
    ),
    "held at a session's end": Removal(
        "committed prompts outlive the session", _off(HandOff, "link_ended", without.held_for_ever)
    ),
    "asked at a session's end": Removal(
        "a prompt waits for the answer of an ended session", _off(HandOff, "link_ended", without.asked_for_ever)
    ),
    "redial": Removal("prefill dials a decode worker once", _off(Links, "_keep", without.dial_once)),
    "register again": Removal("a worker registers once", _off(Attachments, "register", without.register_once)),
    "unreachable": Removal("prompts wait for ever for decode", _off(HandOff, "link_unreachable")),
    "repair": Removal("missing and damaged spans are not asked for again", _off(Spans, "_resend")),
    "writes in flight": Removal(
        "pages are free, and Quiet goes out, while writes are in flight",
        _off(Prompts, "settle", without.settle_without_waiting),
    ),
    "steps in flight": Removal(
        "pages are free while a step writes them", _off(Flights, "keep", lambda flights, request, pages: False)
    ),
    "references": Removal("shared pages are not counted", _off(PagePool, "share", without.share_without_reference)),
    "copy on write": Removal("a step writes a page that others read", _off(PagePool, "writable", lambda *a: True)),
    "tenants": Removal("a tenant gets pages as another one left them", _off(PagePool, "_hand_over")),
    "class": Removal("an answer goes on in any numerics class", _off(candidates, "Need", without.any_partner)),
    "verification": Removal("drafts count unverified", _off(Speculation, "verified", without.accept_all)),
    # processes that stand still, hang or leave
    "standing still": Removal(
        "a supervisor leaves processes alone that stand still", _off(LifeJudge, "look", lambda *a: [])
    ),
    "watchdog": Removal("a worker lives on while its step hangs", _off(Watchdog, "problem", lambda *a: "")),
    "hung workers": Removal("a request stays with a worker whose step hangs", _off(HungWorkers, "_judge")),
    "drains": Removal("a worker that leaves gets new requests", _off(AttachedWorker, "drains")),
    "handing over": Removal("a worker that leaves keeps its requests to its end", _off(HandingOver, "on_drain")),
    "end of a drain": Removal(
        "a gateway that leaves does not end its last answers", _off(Gateway, "end_all", lambda *a: 0)
    ),
    "one port": Removal(
        "a gateway that leaves refuses requests though another one stays",
        _off(Gateway, "drain", without.drain_refusing),
    ),
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
