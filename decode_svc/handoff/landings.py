"""Landings: steps 3 and 4 of a request's life on decode's side.

A prefill worker sends Ready and gets all the pages that its prompt still needs, or Later. Its spans are checked as they
arrive, and then admitted (decode_svc/handoff/spans.py). A landing that ends in any other way is fenced: pages that its
writer can still reach wait in quarantine (decode_svc/handoff/quarantine.py). The methods of this file make the moves of
the table "Landing at decode" in docs/protocol.md that prefill's messages and sessions cause."""

import asyncio
import logging
from collections.abc import Mapping

from decode_svc.handoff.message_checks import commit_problem, written_problem
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.room import Room
from decode_svc.handoff.sessions import Peer, Sessions
from decode_svc.handoff.spans import Spans
from decode_svc.request.requests import DecodeHost, DecodePhase, DecodeRequest, OpenLanding, PageOwner
from engine.pool.horizon import held
from engine.pool.pages import PagePool
from kvtransfer.transfer import Arrived, Pool
from mesh.messages.jobs import Reason, Ticket
from mesh.messages.kv_messages import Abort, Commit, Computing, Landed, Later, Quiet, Ready, Written
from mesh.messages.message import Message
from mesh.rules import Rules
from mesh.sessions.session import refuse

log = logging.getLogger("baton.decode")


class Landings:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        pages: PagePool,
        pool: Pool,
        sessions: Sessions,
        room: Room,
        *,
        host: DecodeHost,
        rules: Rules,
    ) -> None:
        self._requests = requests
        self._pages = pages
        self.pool = pool
        self._sessions = sessions
        self._room = room
        self._host = host
        self._rules = rules
        self.vocabulary = 0  # token ids of the model; 0: not known
        self._loop = asyncio.get_running_loop()
        self.quarantine = Quarantine(pages, sessions, host=host, rules=rules)
        self.spans = Spans(pages, pool, sessions, horizon=room.horizon, host=host, rules=rules)
        self._lost = {Reason.LANDING_LOST: 0, Reason.NO_PROGRESS: 0}  # landings that were lost
        self.bytes_landed = 0  # bytes of the pages of all landings that prefill did not decline
        self.bytes_given_up = 0  # those of landings that were fenced: perhaps not all of them were written

    def session_began(self, peer: Peer) -> None:
        self.quarantine.ask_again(peer)

    def on_message(self, peer: Peer, message: Message) -> None:
        match message:
            case Ready():
                self._ready(peer, message.ticket)
            case Written(ticket, first_layer, layers, _, pages, checksums):
                refuse(written_problem(message, self.pool.shape.layers))
                if found := self._find(ticket, peer):
                    self.spans.arrived(*found, pages, first_layer, layers, checksums)
            case Computing():
                if found := self._find(message.ticket, peer):
                    _, landing = found
                    landing.progress_seconds, landing.longest_step_ms = self._loop.time(), message.longest_step_ms
            case Commit():
                if found := self._find(message.ticket, peer):
                    refuse(commit_problem(message, found[0].next_position, self.vocabulary))
                    self.spans.committed(*found, message)
                else:
                    self.quarantine.prove(lambda own: own.writer == peer.incarnation and own.committed_by(message))
            case Quiet():
                self._quiet(peer, message)
            case _:
                refuse(f"prefill workers do not send {type(message).__name__}")

    # ---- a landing begins

    def _ready(self, peer: Peer, ticket: Ticket) -> None:
        request = self._requests.get(ticket.request)
        if request is None or not request.holds(ticket):
            peer.send(Later(ticket) if is_early(request, ticket) else Abort(ticket))
        elif request.phase in (DecodePhase.LOST, DecodePhase.LOCAL) or request.lands_from_another(peer.incarnation):
            peer.send(Abort(ticket))
        elif request.phase is DecodePhase.RUNNING:
            peer.send(Landed(ticket))
        elif request.landing is not None:
            peer.send(request.landing.message)
        elif not request.adapter.ready:
            peer.send(Later(ticket))
        else:
            self._land(peer, request)

    def _land(self, peer: Peer, request: DecodeRequest) -> None:
        """Answer Landing with fresh pages for everything that decode lacks and will read, or Later."""
        before, first_windowed = self._room.take_shared_before_landing(request)
        lacking = sum(lands := self._room.lands(request, before, first_windowed))
        if not self._room.allows(request, lacking):
            self._room.refuse(request)
            self._pages.release(held(before))
            peer.send(Later(request.ticket))
            return
        self._room.pass_over(request)
        owner = PageOwner(request.ticket, peer.incarnation, peer.transport, round=0)
        taken = self._pages.land(lacking, owner, request.job.salt)
        assert taken is not None, "room was checked"
        request.enter(DecodePhase.LANDING)
        request.pages, firsts, layers = list(before), (len(before), first_windowed), self.pool.shape.layers
        landing = OpenLanding.begun(owner, lands, taken, firsts, layers=layers, now=self._loop.time())
        request.landing, receiver = landing, self._sessions.receivers[peer.transport]
        receiver.open(request.ticket.pack(), landing.places, self._frame_arrived, landing.frame_begins)
        self.bytes_landed += lacking * self.pool.shape.page_bytes
        peer.send(landing.message)
        request.record.lands(landing.began_seconds, lacking, self.pool.shape.page_bytes, peer.transport)
        self._watch(request, landing)
        self._host.wake()

    # ---- the landing fills

    def _frame_arrived(self, frame: Arrived) -> None:
        """Two-sided: a whole frame is in its page."""
        if found := self._find(Ticket.unpack(frame.ticket)):
            found[1].frame_ends(frame.page, frame.first_layer, frame.layers)
            self.spans.arrived(*found, [frame.page], frame.first_layer, frame.layers, [frame.checksum])

    def _watch(self, request: DecodeRequest, landing: OpenLanding) -> None:
        due = self._loop.time() + self._rules.progress_seconds / 4
        self._loop.call_at(due, self._check_progress, request, landing, due)

    def _check_progress(self, request: DecodeRequest, landing: OpenLanding, due: float) -> None:
        """The progress deadline: neither a valid span nor Computing for too long. A late loop judges no writer."""
        if request.landing is not landing:
            return
        now, rules = self._loop.time(), self._rules
        if now - due > rules.late_seconds:
            landing.progress_seconds = now
        longest = rules.progress_steps * landing.longest_step_ms / 1000
        if now - landing.progress_seconds > max(rules.progress_seconds, longest):
            self._lose(request, Reason.NO_PROGRESS, proof=False)
        else:
            self._watch(request, landing)

    # ---- the landing ends without admission

    def _quiet(self, peer: Peer, quiet: Quiet) -> None:
        """The writer has no write of this ticket in flight and starts none. Each process speaks for itself alone."""
        self.quarantine.prove(lambda owner: owner.quieted_by(quiet) and quiet.incarnation == peer.incarnation)
        found = self._find(quiet.ticket)
        if found is None or quiet.incarnation != peer.incarnation or not found[1].owner.quieted_by(quiet):
            return
        request, landing = found
        if landing.round and landing.commit is None:
            self.spans.admit(request)  # prefill does not repair: decode computes what is missing
            return
        self.bytes_landed -= len(landing.writable) * self.pool.shape.page_bytes  # prefill declined: it wrote nothing
        self._close(request, landing)
        self._pages.unland(landing.writable)
        request.enter(DecodePhase.OPEN)
        request.record.declined(self._loop.time())
        self._host.wake()

    async def session_ended(self, peer: Peer) -> None:
        """Rule [lost]: decode reports every landing that is lost with its session. With proof that the writer can write
        no more, a complete landing is admitted, and the pages of the others are free."""
        receiver = self._sessions.receivers[peer.transport]
        proof = await receiver.silent(peer.incarnation, self._rules.pidfd_seconds)
        for request in list(self._requests.values()):
            landing = request.landing
            if landing is not None and landing.writer == peer.incarnation:
                if proof and landing.complete:
                    self.spans.admit(request)
                else:
                    self._lose(request, Reason.LANDING_LOST, proof=proof)
        if proof:
            self.quarantine.prove(lambda owner: owner.writer == peer.incarnation)

    def _lose(self, request: DecodeRequest, reason: Reason, *, proof: bool) -> None:
        self._lost[reason] += 1
        self.fence(request, proof=proof, why=reason.value)
        request.enter(DecodePhase.LOST)
        self._host.lost(request, reason)

    def fence(self, request: DecodeRequest, *, proof: bool = False, why: str = "the attempt ended here") -> None:
        """Rule [fence]: the landing is over for its writer. Its pages are free where no write can come, with proof or
        on a two-sided transport; else they are quarantined."""
        landing = request.landing
        if landing is None:
            return
        valid, total = landing.landed
        log.debug(
            "request %d: landing ends with %d of %d spans, proof %s",
            *(request.key, valid, total, proof),
            extra={
                "event": "landing_ended",
                "request": request.key,
                "spans_valid": valid,
                "spans_total": total,
                "proof": proof,
            },
        )
        self.bytes_given_up += len(landing.writable) * self.pool.shape.page_bytes
        self._close(request, landing)
        if not proof and self.quarantine.needs_proof(self._sessions.receivers[landing.transport]):
            self.quarantine.add(landing.owner, landing.writable, why)
        else:
            self._pages.unland(landing.writable)
        self._sessions.send(landing.writer, Abort(landing.ticket))

    def _close(self, request: DecodeRequest, landing: OpenLanding) -> None:
        """Discard later frames and release the shared pages. The caller decides about the pages of the landing."""
        self._sessions.receivers[landing.transport].close(landing.ticket.pack())
        self._pages.release(held(request.pages))
        request.landing = None
        request.pages = []
        request.hashes = []

    # ----

    def counts(self) -> dict[str, int]:
        """Admissions whose tokens prefill computed all, the other admissions, bytes of the pages of landings and of
        those that were given up, what went wrong with landings, and how quarantine stands."""
        return {
            "admitted_remote": self.spans.whole,
            "admitted_patched": self.spans.admitted - self.spans.whole,
            "bytes_landed": self.bytes_landed,
            "bytes_given_up": self.bytes_given_up,
            "spans_damaged": self.spans.damaged,
            "spans_missing": self.spans.missing,
            **{reason.value: count for reason, count in self._lost.items()},
            **self.quarantine.counts(),
        }

    def _find(self, ticket: Ticket, sender: Peer | None = None) -> tuple[DecodeRequest, OpenLanding] | None:
        """The request that holds this ticket, with its landing; None if that landing is another sender's."""
        request = self._requests.get(ticket.request)
        if request is None or request.landing is None or not request.holds(ticket):
            return None
        return None if sender and request.lands_from_another(sender.incarnation) else (request, request.landing)


def is_early(request: DecodeRequest | None, ticket: Ticket) -> bool:
    """Rule [early]: a Ready that has overtaken its Open is put off, not refused. Otherwise prefill drops the prompt,
    and when Open arrives no worker pushes."""
    return request is None or request.ticket.attempt <= ticket.attempt
