"""The only sequencer of a request: it alone raises an attempt.

Steps 2, 5 and 8 of a request's life, and the table "Request at the gateway" in docs/protocol.md. Whatever dies, stalls
or repeats itself behind the gateway, the client sees each token once and in order. Reports about old tickets are
dropped silently, so two reports of one failure raise once."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random

from gateway.core.interface import ChoiceRequest
from gateway.fairness.loop_turns import Turns
from gateway.routing.registry import Workers
from gateway.routing.router import Local, Route, RouteDecision
from gateway.sequencing.affinity import Affinities
from gateway.sequencing.attempts import OpenAttempts
from gateway.sequencing.candidates import choose, forgive, refuse
from gateway.sequencing.deadlines import Deadlines, Paces
from gateway.sequencing.deaths import Deaths
from gateway.sequencing.ended_requests import Tally
from gateway.sequencing.examining import Examining
from gateway.sequencing.lines import Lines
from gateway.sequencing.observer import UNOBSERVED, RequestObserver
from gateway.sequencing.patience import Patience
from gateway.sequencing.reasons import TURN, given_back
from gateway.sequencing.relay import TokenRelay
from gateway.sequencing.requests import READER_BEHIND, GatewayRequest, RequestPhase, StartLimit
from gateway.sequencing.retries import Retries
from gateway.sequencing.startup_wait import Settling
from gateway.sequencing.unread import UnreadTokens, share
from gateway.tracing.attributes import route_attributes
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import FullKind, Reason
from mesh.messages.orders import Cancel, Open, Prefill
from mesh.messages.reports import Full, Lost, Prefilled, Tokens
from mesh.rules import Rules

log = logging.getLogger("baton.gateway")


class Sequencer:
    def __init__(
        self,
        workers: Workers,
        *,
        rules: Rules,
        random: Random,
        local: Local,
        patience_seconds: float,
        reader_bytes: int,  # tokens of one client request that its reader may leave
        start_limit: Callable[[ChoiceRequest], StartLimit | None] = lambda choice: None,  # see GatewayRequest.start
        observer: RequestObserver = UNOBSERVED,
    ) -> None:
        self.workers, self.observer = workers, observer
        self.requests: dict[int, GatewayRequest] = {}  # every request that has not ended
        self.local = local
        self._rules = rules
        self._random = random
        self._start_limit = start_limit
        self._reader_bytes = reader_bytes
        self._turns = Turns()
        self._attempts = OpenAttempts()
        self._affinities = Affinities()
        self.tally = Tally()
        self.paces = Paces()
        self.relay = TokenRelay(self, observer)
        self._deadlines = Deadlines(self.paces, self.end)
        self._retries = Retries(lambda: self.in_seniority(RequestPhase.WAITING), self.raise_attempt)
        self.settling = Settling(rules, self._retries.start)
        self._lines = Lines(workers, self._begin)
        self._patience = Patience(self, workers, self.tally, local=local, seconds=patience_seconds)
        self.examining = Examining(self, workers, self._patience, local=local, observer=observer)
        self.deaths = Deaths(self, self.requests, self._patience, self.settling, observer=observer, rules=rules)

    # ---- step 2: a request gets its workers, and others whenever an attempt fails

    def accept(self, choice: ChoiceRequest) -> GatewayRequest:
        loop = asyncio.get_running_loop()
        now, examined = loop.time(), choice.examination is not None
        trace = choice.trace.choice(now, choice.prompt, choice.sampling, examined=examined)
        unread = UnreadTokens(share(self._reader_bytes, choice.choices), self._turns)
        request = GatewayRequest(choice, self._random.getrandbits(63), now, trace, unread, numerics=choice.numerics)
        request.start, request.behind = self._start_limit(choice), len(choice.trace.choices) > 1
        self.requests[request.id] = request
        self.observer.accepted(request)
        self._deadlines.begin(request)
        self._lines.joins(request)
        if request.turn_seconds is None:
            trace.waits_for_worker(now, TURN)
        return request

    def _begin(self, request: GatewayRequest) -> None:
        """The request's turn has come among the choices of its client's request."""
        request.turn_seconds = asyncio.get_running_loop().time()
        self.tally.accepted()
        self.raise_attempt(request)

    def raise_attempt(self, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        """The only place that raises an attempt. `decode_lost`: keep the prefill worker, as it may hold the pages."""
        if (verdict := self.deaths.verdict(request)).stops:
            return self.deaths.stop(request, verdict)
        if request.choice.examination is not None:
            return self.examining.raise_attempt(request)
        clock = asyncio.get_running_loop().time
        began = clock()
        preferred = self._affinities.preferred(request.choice)
        chosen = choose(request, self.workers, self.local, decode_lost=decode_lost, preferred=preferred)
        self.observer.routed(chosen.decision if chosen else RouteDecision.WAIT, clock() - began)
        kept = {chosen.decode.incarnation, chosen.prefill and chosen.prefill.incarnation} if chosen else set()
        self.leave(request, {request.decode, request.prefill} - kept)
        if chosen is None:
            self._patience.wait_or_fail(request, settled=self.settling.over)
        else:
            self._open(request, chosen, began)

    def _open(self, request: GatewayRequest, chosen: Route, began: float) -> None:
        """Begin the next attempt: decode gets Open and prefill gets Prefill, both with the same new ticket."""
        now, ticket = self.begin_attempt(request), request.ticket
        assert ticket is not None, "an attempt has a ticket"
        request.decode = chosen.decode.incarnation
        request.prefill = chosen.prefill.incarnation if chosen.prefill else None
        self._affinities.remember(request.choice, request.decode, request.prefill)
        job, trace = request.job(now), request.trace
        own = replace(job, traceparent=trace.sends(ticket, chosen.decode.tier, chosen.decode.name, now))
        chosen.decode.send(Open(own, request.prefill, age_ms=round((now - request.entered_seconds) * 1000)))
        computed = len(job.tokens) - chosen.cached[chosen.prefill is not None]
        chosen.decode.count(computed if chosen.prefill is None else 0)
        if chosen.prefill is not None:
            own = replace(job, traceparent=trace.sends(ticket, chosen.prefill.tier, chosen.prefill.name, now))
            chosen.prefill.send(Prefill(own, chosen.decode.hello.address, chosen.decode.incarnation))
            chosen.prefill.count(computed)
        self._lines.opened(request, chosen.prefill or chosen.decode, computed)
        decision = route_attributes(chosen, resumed=ticket.attempt > 1)
        trace.routed(began, asyncio.get_running_loop().time(), decision)

    def begin_attempt(self, request: GatewayRequest) -> float:
        """The request is open and has a new ticket from now on; returns the time."""
        request.enter(RequestPhase.OPEN)
        self.observer.attempted()
        now = asyncio.get_running_loop().time()
        self._attempts.end(request)
        request.begin(request.next_ticket(self._random.randbytes(16)), now)
        self._attempts.begin(request)
        return now

    # ---- steps 5 and 8: tokens on their way to the client

    def on_prefilled(self, prefilled: Prefilled) -> None:
        request = self.current(prefilled.ticket.pack())
        if request is not None and request.prefilled is None:
            request.prefilled, request.trace.cached_tokens = prefilled, prefilled.cached_tokens
            self.observer.prefilled(request, prefilled)

    def on_tokens(self, worker: AttachedWorker, tokens: Tokens) -> None:
        self.relay.on_tokens(worker, tokens)

    def current(self, ticket: bytes) -> GatewayRequest | None:
        return self._attempts.current(ticket)

    def started(self, request: GatewayRequest, now: float) -> None:
        self.tally.started(now)
        self.observer.first_token(request, now)
        self._lines.started(request)

    # ---- a reader that is behind

    def pause(self, request: GatewayRequest, now: float) -> None:
        """The reader is behind: the workers forget the request and give its place to others."""
        log.debug("request %s: its reader is behind, it pauses", request.choice.request_id)
        request.enter(RequestPhase.PAUSED)
        request.trace.leaves(now, READER_BEHIND)
        self.leave(request, {request.decode, request.prefill})
        request.prefill = request.decode = None

    def on_drained(self, request: GatewayRequest) -> None:
        """The reader of a paused request has taken what was held: another attempt begins behind it."""
        self.observer.resumed(READER_BEHIND, request.choice.model)
        self.raise_attempt(request)

    # ---- reports that raise an attempt

    def on_lost(self, worker: AttachedWorker, lost: Lost) -> None:
        request = self.current(lost.ticket.pack())
        if request is None:
            return
        name, ids = request.choice.request_id, request.choice.trace.log_fields
        log.info("request %s attempt %d: %s %s", name, lost.ticket.attempt, lost.reason.value, lost.detail, extra=ids)
        if (error := given_back(request, lost, asyncio.get_running_loop().time())) is not None:
            return self.end(request, error)
        if lost.reason is Reason.LANDING_LOST:
            self.deaths.landing_lost(request)
        if lost.reason is Reason.TOO_LARGE:
            request.refused[worker.incarnation] = FullKind.EVER
        if lost.reason is Reason.ADAPTER:
            request.lacks_adapter.add(worker.incarnation)
        if lost.reason is Reason.CANNOT_PUSH and request.decode is not None:
            pair = worker.incarnation, request.decode
            request.failed[pair] = request.failed.get(pair, 0) + 1
        self.observer.resumed(lost.reason.value, request.choice.model)
        request.trace.leaves(asyncio.get_running_loop().time(), lost.reason.value, worker.tier)
        self.raise_attempt(request, decode_lost=lost.reason is Reason.PREEMPTED)

    def on_full(self, worker: AttachedWorker, full: Full) -> None:
        request = self.current(full.ticket.pack())
        if request is not None:
            refuse(request, worker, full.kind)
            self.observer.resumed(f"full_{full.kind.value}", request.choice.model)
            request.trace.leaves(asyncio.get_running_loop().time(), f"full_{full.kind.value}", worker.tier)
            self.raise_attempt(request, decode_lost=True)

    def on_room(self, worker: AttachedWorker) -> None:
        """A worker attached or reported room: waiting requests are retried, the oldest first."""
        for request in self.requests.values():
            forgive(request, worker)
        self._retries.start()
        self._lines.on_room()

    def on_session_end(self, worker: AttachedWorker) -> None:
        """The session with a worker ended: every request that needs this worker gets another, the oldest first."""
        self.deaths.ended(worker)

    def in_seniority(self, phase: RequestPhase) -> list[GatewayRequest]:
        """Requests in this phase whose turn has come, the oldest first."""
        found = [each for each in self.requests.values() if each.phase is phase and each.turn_seconds is not None]
        return sorted(found, key=lambda request: request.seniority(self._rules.priority_seconds))

    # ---- step 9: the end

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None:
        """End a request: done without an error, else cancelled or failed. Its workers forget it; idempotent."""
        if request.ended:
            return
        why = type(error).__name__ if error else "done"
        name, phase = request.choice.request_id, request.phase.value
        event = {"event": "request_ended", "request": request.id, "request_id": name, "phase": phase, "error": why}
        log.debug("request %d, %s: ends while %s: %s", request.id, name, phase, why, extra=event)
        stopped = RequestPhase.CANCELLED if isinstance(error, Cancelled) else RequestPhase.ERROR
        request.enter(stopped if error else RequestPhase.DONE)
        request.ended_seconds = asyncio.get_running_loop().time()
        self.requests.pop(request.id, None)
        self._attempts.end(request)
        self.tally.ended(request, error)
        self._lines.ended(request)
        request.stop_waiting()
        self._deadlines.ended(request)
        self.leave(request, {request.decode, request.prefill})
        request.unread.end(error)
        finish = stopped.value if error else request.finish
        request.error = error
        request.over.set()
        request.trace.ends(request.ended_seconds, finish, lambda: request.emitted)
        self.observer.ended(request, error)

    def leave(self, request: GatewayRequest, incarnations: set[int | None]) -> None:
        """Make these workers forget the current attempt and all earlier ones."""
        for incarnation in sorted(i for i in incarnations if i is not None):
            if (worker := self.workers.get(incarnation)) is not None and request.ticket is not None:
                worker.send(Cancel(request.id, request.ticket.attempt))
