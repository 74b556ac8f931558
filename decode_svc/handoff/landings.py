"""Landings: steps 3, 4 and 6 of a request's life on decode's side.

Answers Ready with all pages a prompt still needs or with Later, and admits a request when every span is valid
(spans.py). When a landing ends in any other way it is fenced: pages that a one-sided writer may still write wait in
quarantine for proof (quarantine.py)."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.room import may_land
from decode_svc.handoff.sessions import Peer
from decode_svc.handoff.spans import Spans
from decode_svc.requests import DecodePhase, DecodeRequest, OpenLanding, PageOwner
from engine.batch import pages_needed
from engine.pages import PagePool
from kvtransfer.transfer import Arrived, Pool, Receiver
from mesh.hashing import block_hashes
from mesh.messages import (
    Abort,
    Commit,
    Computing,
    Landed,
    Landing,
    Later,
    Message,
    Quiet,
    Ready,
    Reason,
    Ticket,
    Written,
)
from mesh.rules import Rules

log = logging.getLogger("baton.decode")


class Landings:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        pages: PagePool,
        pool: Pool,
        receivers: Mapping[str, Receiver],
        *,
        numerics: str,
        page_tokens: int,
        max_batch: int,
        rules: Rules,
        admitted: Callable[[DecodeRequest], None],
        lost: Callable[[DecodeRequest, Reason], None],
        changed: Callable[[], None],  # pages came or went without either
    ) -> None:
        self._requests, self._pages, self.pool, self._receivers = requests, pages, pool, receivers
        self._numerics, self._page_tokens, self._max_batch = numerics, page_tokens, max_batch
        self._rules, self._admitted, self._lost, self._changed = rules, admitted, lost, changed
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, Peer] = {}
        self.quarantine = Quarantine(pages, receivers, self._peers, rules, changed)
        self._spans = Spans(pages, pool, receivers, self._peers, rules=rules, admit=self._admit)
        self.bytes_landed = 0  # sum over accepted landings of page ids times page bytes
        self.admitted = 0
        self.whole = 0  # of these, requests of which prefill computed every token

    # ---- sessions with prefill workers

    def session_began(self, peer: Peer) -> None:
        self._peers[peer.incarnation] = peer
        self.quarantine.session_began(peer)

    async def session_ended(self, peer: Peer) -> None:
        """Whether the writer is dead for certain decides: its valid landings run on, its other pages are free."""
        if self._peers.get(peer.incarnation) is peer:
            del self._peers[peer.incarnation]
        receiver = self._receivers[peer.transport]
        proof = await receiver.silent(peer.incarnation, self._rules.pidfd_seconds)
        for request in list(self._requests.values()):
            landing = request.landing
            if request.phase is DecodePhase.LANDING and landing and landing.writer == peer.incarnation:
                if proof and landing.complete:
                    self._admit(request)
                else:
                    self.fence(request, proof=proof)
                    request.enter(DecodePhase.LOST)
                    self._lost(request, Reason.LANDING_LOST)
        if proof:
            self.quarantine.prove(lambda owner: owner.writer == peer.incarnation)

    def on_message(self, peer: Peer, message: Message) -> None:
        match message:
            case Ready():
                self._ready(peer, message.ticket)
            case Written():
                if (request := self._landing(message.ticket)) and request.landing:
                    self._spans.arrived(request, message.pages, message.first_layer, message.layers, message.checksums)
            case Computing():
                if (request := self._landing(message.ticket)) and request.landing:
                    request.landing.progress_seconds = self._loop.time()
                    request.landing.longest_step_ms = message.longest_step_ms
            case Commit():
                self._commit(message)
            case Quiet():
                self._quiet(message)
            case _:
                raise TypeError(f"{type(message).__name__} is no message of a prefill worker")

    # ---- a landing begins

    def _ready(self, peer: Peer, ticket: Ticket) -> None:
        request = self._requests.get(ticket.request)
        if request is None or request.ticket.attempt < ticket.attempt or not self.same(request.ticket, ticket):
            early = request is None or request.ticket.attempt <= ticket.attempt
            if not early or not self._rules.early:
                peer.send(Abort(ticket))  # fenced; or, with the rule off, a Ready that has overtaken its Open
            else:
                peer.send(Later(ticket))
        elif request.phase in (DecodePhase.LOST, DecodePhase.LOCAL):
            peer.send(Abort(ticket))
        elif request.phase is DecodePhase.RUNNING:
            peer.send(Landed(ticket))
        elif request.phase is DecodePhase.LANDING and request.landing:
            peer.send(Landing(ticket, request.landing.first_page, request.landing.pages))
        elif not self._land(peer, request):
            peer.send(Later(ticket))

    def _land(self, peer: Peer, request: DecodeRequest) -> bool:
        shared = self.find(request)
        total = pages_needed(len(request.tokens), self._page_tokens)
        lacking = total - len(shared)
        owner = PageOwner(request.ticket, peer.incarnation, peer.transport, 0)
        if not self.room(request, lacking):
            self._pages.release(shared)
            return False
        pages = self._pages.land(lacking, owner)
        assert pages is not None, "room was checked"
        now, layers = self._loop.time(), self.pool.shape.layers
        request.enter(DecodePhase.LANDING)
        request.pages = list(shared)
        request.landing = landing = OpenLanding(
            ticket=request.ticket,
            writer=peer.incarnation,
            transport=peer.transport,
            first_page=len(shared),
            pages=pages,
            began_seconds=now,
            progress_seconds=now,
            valid=[0] * lacking,
            all_layers=(1 << layers) - 1,
        )
        self._receivers[peer.transport].open(
            request.ticket.pack(), dict(enumerate(pages, len(shared))), lambda arrived: self._frame(arrived)
        )
        self.bytes_landed += lacking * self.pool.shape.page_bytes
        peer.send(Landing(request.ticket, len(shared), pages))
        self._watch(request, landing)
        self._changed()
        return True

    def find(self, request: DecodeRequest) -> tuple[int, ...]:
        """The pages of this text that the prefix cache has, with references taken."""
        job = request.job
        hashes = block_hashes(request.tokens, page_tokens=self._page_tokens, numerics=self._numerics, salt=job.salt)
        shared = self._pages.match(hashes)
        request.hashes = hashes[: len(shared)]
        return shared

    def room(self, request: DecodeRequest, lacking: int) -> bool:
        return may_land(
            request,
            self._requests.values(),
            lacking=lacking,
            available=self._pages.available,
            page_tokens=self._page_tokens,
            overtakes=self._rules.overtakes,
            max_batch=self._max_batch,
        )

    # ---- it fills

    def _frame(self, arrived: Arrived) -> None:
        """Two-sided: a whole frame is in its page."""
        if (request := self._landing(Ticket.unpack(arrived.ticket))) and (landing := request.landing):
            self._spans.arrived(request, [arrived.index], arrived.first_layer, arrived.layers, [arrived.checksum])
            if landing.commit is not None and landing.complete and request.landing is landing:
                self._admit(request)

    def _commit(self, commit: Commit) -> None:
        request = self._landing(commit.ticket)
        if request is None or request.landing is None:
            counts = not self._rules.resend_count
            self.quarantine.prove(
                lambda owner: self.same(owner.ticket, commit.ticket) and (owner.round == commit.round or counts)
            )
            return
        self._spans.committed(request, commit)

    # ---- a landing ends

    def _admit(self, request: DecodeRequest) -> None:
        """Everything valid so far is the request's own; what is not is computed here."""
        landing = request.landing
        assert landing is not None
        self._receivers[landing.transport].close(landing.ticket.pack())
        self._pages.admit(landing.pages)
        self.admitted += 1
        sound = landing.first_page + (landing.sound_pages if self._rules.checksum else len(landing.pages))
        request.pages += landing.pages
        request.filled = min(sound * self._page_tokens, len(request.tokens))
        if request.filled == len(request.tokens):
            first = landing.commit.first if landing.commit else None
            if first is None:
                request.filled -= 1  # the last row is computed again
            else:
                request.tokens.append(first.token)
                request.produced[first.position] = first
                self.whole += 1
        request.enter(DecodePhase.RUNNING)
        request.landing, request.landed_from = None, landing.began_seconds
        if peer := self._peers.get(landing.writer):
            peer.send(Landed(landing.ticket))
        self._admitted(request)

    def _quiet(self, quiet: Quiet) -> None:
        same_one = self._rules.incarnation
        self.quarantine.prove(
            lambda owner: self.same(owner.ticket, quiet.ticket) and (owner.writer == quiet.incarnation or not same_one)
        )
        request = self._landing(quiet.ticket)
        if request is None or (landing := request.landing) is None:
            return
        if landing.round and landing.commit is None:
            self._admit(request)  # a repair that nobody serves: compute here
            return
        self._receivers[landing.transport].close(landing.ticket.pack())
        self._pages.unland(landing.pages)
        self._pages.release(request.pages)
        self.bytes_landed -= len(landing.pages) * self.pool.shape.page_bytes  # declined: nothing was written
        request.landing, request.pages, request.hashes = None, [], []
        request.enter(DecodePhase.OPEN)
        self._changed()

    def fence(self, request: DecodeRequest, *, proof: bool = False) -> None:
        """The landing is over for its writer. Pages are free where no write can come, else quarantined."""
        landing = request.landing
        if landing is None:
            return
        landed, spans = landing.landed
        log.debug(
            "request %d: landing ends with %d of %d spans, proof %s", request.key, landed, spans, proof,
            extra={
                "event": "landing_ended", "request": request.key, "spans_valid": landed, "spans_total": spans,
                "proof": proof,
            },
        )  # fmt: skip
        receiver = self._receivers[landing.transport]
        receiver.close(landing.ticket.pack())
        if receiver.one_sided and self._rules.quarantine and not proof:
            self._pages.quarantine(landing.pages)
            self.quarantine.watch()
        else:
            self._pages.unland(landing.pages)
        if peer := self._peers.get(landing.writer):
            peer.send(Abort(landing.ticket))
        self._pages.release(request.pages)
        request.landing, request.pages, request.hashes = None, [], []

    def _watch(self, request: DecodeRequest, landing: OpenLanding) -> None:
        """The progress deadline: neither a valid span nor Computing for too long. A late loop judges nobody."""
        rules, due = self._rules, self._loop.time() + self._rules.progress_seconds / 4

        def look() -> None:
            if request.landing is not landing:
                return
            now = self._loop.time()
            if now - due > rules.late_seconds:
                landing.progress_seconds = now
            longest = rules.progress_steps * landing.longest_step_ms / 1000
            if now - landing.progress_seconds > max(rules.progress_seconds, longest):
                self.fence(request)
                request.enter(DecodePhase.LOST)
                self._lost(request, Reason.NO_PROGRESS)
            else:
                self._watch(request, landing)

        self._loop.call_at(due, look)

    # ----

    def same(self, one: Ticket, other: Ticket) -> bool:
        if not self._rules.ticket:
            one = replace(one, nonce=other.nonce)
        return one == other

    def _landing(self, ticket: Ticket) -> DecodeRequest | None:
        request = self._requests.get(ticket.request)
        if request is None or request.phase is not DecodePhase.LANDING or not self.same(request.ticket, ticket):
            return None
        return request
