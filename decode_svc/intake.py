"""Intake: accepts, cancels and refuses the requests of gateways, and admits prompts that are prefilled here.

Steps 2 and 6 of a request's life: Open arrives, and a prompt that is prefilled here gets its pages. Open is the only
message that raises an attempt at decode. Decode refuses a request that can never fit, or cannot fit while quarantined
pages are stuck; it never refuses for lack of free pages. When the attempt is raised, a running request keeps its pages
and goes on; any other request starts again and keeps its age."""

import asyncio
import logging

from decode_svc.deadlines import set_deadlines
from decode_svc.emission import Emission
from decode_svc.handoff.quarantine import Quarantine
from decode_svc.handoff.room import Room
from decode_svc.request.observed import AttemptRecord
from decode_svc.request.requests import WAITING, DecodeHost, DecodePhase, DecodeRequest
from engine.adapters.held import LACKS, HeldAdapters, no_adapters
from engine.examining.examinations import Examinations
from engine.model.floor import NO_FLOOR, Floor
from engine.pool.horizon import held
from engine.pool.pages import PagePool
from engine.step.constraint import NO_MASKS, Masker
from mesh.messages.jobs import FullKind, Job, Reason
from mesh.messages.message import Message
from mesh.messages.orders import Cancel, Examine, Open
from mesh.messages.reports import Full, Lost
from mesh.rules import Rules
from mesh.sessions.legs import Outbox
from mesh.sessions.session import BadMessage, Session

log = logging.getLogger("baton.decode")


class Intake:
    def __init__(
        self,
        requests: dict[int, DecodeRequest],
        pages: PagePool,
        room: Room,
        quarantine: Quarantine,
        emission: Emission,
        outbox: Outbox,
        examinations: Examinations,
        adapters: HeldAdapters | None = None,  # None: requests with an adapter are refused
        *,
        floor: Floor = NO_FLOOR,
        masker: Masker | None = None,
        host: DecodeHost,
        rules: Rules,
    ) -> None:
        self._floor, self._masker = floor, masker
        self._requests = requests
        self._pages = pages
        self._room = room
        self._quarantine = quarantine
        self._emission = emission
        self._outbox = outbox
        self._host = host
        self._rules = rules
        self._examinations, self._adapters = examinations, adapters or no_adapters()
        self._loop = asyncio.get_running_loop()
        self.admitted_local = 0

    def on_message(self, gateway: Session, message: Message) -> None:
        match message:
            case Open():
                self._open(gateway, message)
            case Examine():
                self._examinations.add(gateway, message)
            case Cancel():
                self._examinations.cancel(message)
                request = self._requests.get(message.request)
                if request and message.concerns(request.ticket):
                    self._cancel(request)
            case _:
                raise BadMessage(f"gateways do not send {type(message).__name__} to a decode worker")
        self._host.wake()

    def gateway_ended(self, gateway: Session) -> None:
        for request in list(self._requests.values()):
            if request.gateway is gateway:
                self._host.drop(request)
        self._examinations.gateway_ended(gateway)
        self._host.wake()

    # ---- a request comes

    def _open(self, gateway: Session, message: Open) -> None:
        job, old = message.job, self._requests.get(message.job.ticket.request)
        if old is not None and old.ticket.attempt >= job.ticket.attempt and old.holds(job.ticket):
            return
        if old is not None and old.phase is DecodePhase.RUNNING and self._take_over(old, gateway, message):
            return
        opened, passed = self._loop.time() - message.age_ms / 1000, None
        if old is not None:
            opened, passed = min(opened, old.opened_seconds), old.passed
            self._host.drop(old)
        request = DecodeRequest(
            job,
            gateway,
            opened,
            opened + job.priority * self._rules.priority_seconds,
            list(job.tokens),
            message.prefill_incarnation,
            passed=passed,
        )
        request.record = self._record(gateway, job)
        request.record.opened(self._loop.time(), local=request.phase is DecodePhase.LOCAL)
        if self._room.largest_need(request) > self._pages.pages:
            gateway.send(Full(job.ticket, FullKind.EVER))
            request.record.ended(self._loop.time())
            return
        if not self._has_adapter(request) or (job.sampling.grammar and not self._follows_grammar(request)):
            return
        self._requests[request.key] = request
        set_deadlines(request, self._expire, self._host)

    def _has_adapter(self, request: DecodeRequest) -> bool:
        """Take a place for the request's adapter, before it gets pages: who has pages never waits for one. False: this
        worker lacks it, which the gateway learns."""
        lease = self._adapters.lease(request.job.adapter)
        if lease is None:
            request.gateway.send(Lost(request.ticket, Reason.ADAPTER, LACKS))
            request.record.ended(self._loop.time())
            return False
        request.adapter = lease
        lease.want()
        return True

    def _follows_grammar(self, request: DecodeRequest) -> bool:
        """Compile the request's grammar while its pages are on their way. False: this worker cannot, which the gateway
        learns."""
        job = request.job
        if self._masker is None:
            request.gateway.send(Lost(job.ticket, Reason.GRAMMAR, NO_MASKS))
            request.enter(DecodePhase.ENDED)
            request.record.ended(self._loop.time())
            return False
        request.constraint = self._masker.constraint(job.sampling)
        if request.constraint is not None:
            request.constraint.masks(job.emitted)
            request.constraint.when_ready(self._host.wake)
        return True

    def _take_over(self, request: DecodeRequest, gateway: Session, message: Open) -> bool:
        """Continue a running request under the new attempt: it keeps its pages and emits again from the attempt's base.
        False: its text differs from the tokens that the gateway names, or it has not emitted those that are wanted."""
        job = message.job
        known = min(len(job.tokens), len(request.tokens))
        same = job.adapter == request.job.adapter and len(job.prompt) == len(request.job.prompt)
        same = same and tuple(request.tokens[:known]) == job.tokens[:known]
        if not same or any(each not in request.produced for each in range(job.base, request.next_position)):
            return False
        request.record.ended(self._loop.time(), request.steps, request.drafts)
        request.record = self._record(gateway, job)
        request.record.continues(self._loop.time())
        request.job = job
        request.gateway = gateway
        request.prefill = message.prefill_incarnation
        request.tokens.extend(job.tokens[known:])
        set_deadlines(request, self._expire, self._host)
        if request.phase is DecodePhase.ENDED:  # its deadline has passed
            return True
        for position in range(job.base, request.next_position):
            self._emission.show(request, request.produced[position])
        self._emission.flush()
        return True

    def _record(self, gateway: Session, job: Job) -> AttemptRecord:
        leg = self._outbox.recorder(gateway, job, self._loop.time())
        return AttemptRecord(leg, job.base, floor=self._floor, prompt_tokens=len(job.prompt))

    # ---- a prompt that is prefilled here gets its pages

    def admit_local(self) -> None:
        """Admit the local prompts that have room now, the oldest first. Once the batch is full the others are refused
        untried: each trial looks at every request, and all of them wait at every step."""
        local = [r for r in self._requests.values() if r.phase is DecodePhase.LOCAL]
        places = self._room.places() if local else 0
        for request in sorted(local, key=lambda r: r.seniority):
            if places:
                places -= self._admit(request)
            else:
                self._room.refuse(request)

    def _admit(self, request: DecodeRequest) -> bool:
        """Admit the request if there is room for it, and say whether there was."""
        if not request.adapter.ready:
            return False
        shared = self._room.take_shared(request)
        lacking = self._room.lacking_here(request, shared)
        if not self._room.allows(request, lacking):
            self._room.refuse(request)
            self._pages.release(held(shared))
            return False
        self._room.pass_over(request)
        pages = self._pages.take(lacking, request.job.salt)
        assert pages is not None, "room was checked"
        request.pages = [*shared, *pages]
        request.filled = request.cached = min(len(request.hashes) * self._room.page_tokens, len(request.tokens) - 1)
        request.enter(DecodePhase.RUNNING)
        self.admitted_local += 1
        self._host.admitted(request)
        return True

    def admit_examinations(self) -> None:
        """Give pages to prompts that are examined here: what running requests leave of the pool, and not what an older
        request waits for."""
        room, limit = self._pages.available - self._room.growth(), self._pages.pages - self._quarantine.stuck_pages
        self._examinations.admit(room, limit=limit, elder=self._room.oldest_waiting())

    # ---- requests that leave before their text ends

    def refuse_hopeless(self) -> None:
        """Answer Full(now) for every waiting request that does not fit any more beside the stuck pages, and Lost for
        those whose adapter does not come back into memory."""
        for request in [r for r in self._requests.values() if r.adapter.fault]:
            self._host.lost(request, Reason.ADAPTER, request.adapter.fault)
            self._host.drop(request)
        if self._quarantine.stuck_pages:
            for request in [r for r in self._requests.values() if r.phase in WAITING]:
                self.refuse_unfit(request)

    def refuse_unfit(self, request: DecodeRequest) -> None:
        """Answer Full(now) if the request needs more than the pool has beside pages that no worker can release."""
        if self._room.largest_need(request) > self._pages.pages - self._quarantine.stuck_pages:
            request.gateway.send(Full(request.ticket, FullKind.NOW))
            self._host.drop(request)

    def _expire(self, request: DecodeRequest) -> None:
        """The deadline has passed, though no Cancel came. The gateway ends the request by its own timer."""
        self._cancel(request)
        self._host.wake()

    def _cancel(self, request: DecodeRequest) -> None:
        log.debug(
            "request %d: cancelled while %s",
            *(request.key, request.phase.value),
            extra={"event": "request_cancelled", "request": request.key, "phase": request.phase.value},
        )
        self._host.drop(request)
