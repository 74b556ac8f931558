"""The only sequencer: it alone raises a request's attempt, and it forwards only the current ticket's next position.

Steps 2 and 8 of a request's life, the table "Request at the gateway" of PROTOCOL.md. Whatever dies, stalls or repeats
itself behind it, the client sees each token once and in order. Reports about old tickets are dropped silently, so two
reports of one failure raise once."""

import asyncio
import logging
from collections.abc import Callable
from random import Random

from gateway.core import ChoiceRequest
from gateway.requests import GatewayRequest, RequestPhase
from gateway.router import Local, Need, Route, route
from gateway.workers import AttachedWorker, Workers
from mesh.errors import BatonError, ClassUnavailable, DeadlineExceeded, PoolTooSmall, Unavailable, WorkersDied
from mesh.hashing import block_hashes
from mesh.messages import (
    Cancel,
    End,
    Full,
    FullKind,
    Job,
    Lost,
    Open,
    Prefill,
    Prefilled,
    Reason,
    Ticket,
    Tier,
    Token,
    Tokens,
)
from mesh.rules import Rules
from mesh.telemetry import Root

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
        on_end: Callable[[GatewayRequest, BatonError | None], None],
    ) -> None:
        self.workers = workers
        self.requests: dict[int, GatewayRequest] = {}
        self._rules, self._random, self._local = rules, random, local
        self._patience_seconds, self._on_end = patience_seconds, on_end

    # ---- from the client

    def accept(self, spec: ChoiceRequest, root: Root) -> GatewayRequest:
        loop = asyncio.get_running_loop()
        request = GatewayRequest(spec, self._random.getrandbits(63), loop.time(), root, asyncio.Queue())
        request.numerics = spec.numerics
        self.requests[request.id] = request
        if spec.deadline_seconds is not None:
            late = DeadlineExceeded(f"the deadline of {spec.deadline_seconds:.3f} s passed")
            request.deadline = loop.call_later(spec.deadline_seconds, self.end, request, late)
        self.raise_attempt(request)
        return request

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None:
        """Every end of a request: done (no error), cancelled, failed."""
        if request.phase is RequestPhase.ENDED:
            return
        why = type(error).__name__ if error else "done"
        log.debug(
            "request %d, %s: ends while %s: %s", request.id, request.spec.request_id, request.phase.value, why,
            extra={
                "event": "request_ended", "request": request.id, "request_id": request.spec.request_id,
                "phase": request.phase.value, "error": why,
            },
        )  # fmt: skip
        request.phase = RequestPhase.ENDED
        self.requests.pop(request.id, None)
        for timer in (request.deadline, request.patience):
            if timer is not None:
                timer.cancel()
        self._tell_cancel(request, {request.prefill, request.decode})
        if error is not None:
            request.events.put_nowait(error)
        self._on_end(request, error)

    # ---- from workers

    def on_tokens(self, worker: AttachedWorker, tokens: Tokens) -> None:
        for item in tokens.items:
            request = self._current(item.ticket, any_attempt=not self._rules.attempt)
            if request is None:
                continue
            if worker.tier is Tier.DECODE and item.ticket == request.ticket and not request.handed:
                request.handed, request.handed_seconds = True, asyncio.get_running_loop().time()
            if item.token.position == request.next_position:
                self._show(request, worker, item.token)

    def on_prefilled(self, prefilled: Prefilled) -> None:
        request = self._current(prefilled.ticket)
        if request is not None and request.prefilled is None:
            request.prefilled = prefilled

    def on_lost(self, worker: AttachedWorker, lost: Lost) -> None:
        request = self._current(lost.ticket)
        if request is None:
            return
        log.info("request %s attempt %d: %s", request.spec.request_id, lost.ticket.attempt, lost.reason.value)
        if lost.reason is Reason.TOO_LARGE:
            request.refused[worker.incarnation] = FullKind.EVER
        if lost.reason is Reason.CANNOT_PUSH and request.decode is not None:
            pair = worker.incarnation, request.decode
            request.failed[pair] = request.failed.get(pair, 0) + 1
        self.raise_attempt(request, decode_lost=lost.reason is Reason.PREEMPTED)

    def on_full(self, worker: AttachedWorker, full: Full) -> None:
        request = self._current(full.ticket)
        if request is not None:
            request.refused[worker.incarnation] = full.kind
            self.raise_attempt(request, decode_lost=True)

    def on_room(self, worker: AttachedWorker) -> None:
        """A worker came, or reported room: those who wait try again."""
        for request in list(self.requests.values()):
            if request.refused.get(worker.incarnation) is FullKind.NOW:
                del request.refused[worker.incarnation]
            if request.phase is RequestPhase.WAITING:
                self.raise_attempt(request)

    def on_end(self, worker: AttachedWorker) -> None:
        """The session with a worker ended."""
        for request in list(self.requests.values()):
            decode_lost = request.decode == worker.incarnation
            prefill_lost = request.prefill == worker.incarnation and not request.handed
            if request.phase is RequestPhase.OPEN and (decode_lost or prefill_lost):
                request.deaths += 1
                if request.deaths >= self._rules.deaths:
                    self.end(request, WorkersDied(f"{request.deaths} workers ended while they served this request"))
                else:
                    self.raise_attempt(request, decode_lost=decode_lost)

    # ---- the one place where an attempt is raised

    def raise_attempt(self, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        chosen = self._route(request, decode_lost)
        targets = {chosen.decode.incarnation, chosen.prefill and chosen.prefill.incarnation} if chosen else set()
        self._tell_cancel(request, {request.prefill, request.decode} - targets)
        if chosen is None:
            self._wait(request)
            return
        ticket = Ticket(request.id, request.ticket.attempt + 1 if request.ticket else 1, self._random.randbytes(16))
        request.phase, request.ticket, request.handed = RequestPhase.OPEN, ticket, False
        if request.patience is not None:
            request.patience.cancel()
            request.patience = None
        request.decode = chosen.decode.incarnation
        request.prefill = chosen.prefill.incarnation if chosen.prefill else None
        spec, now = request.spec, asyncio.get_running_loop().time()
        job = Job(
            ticket=ticket,
            prompt=spec.prompt,
            emitted=request.emitted,
            sampling=spec.sampling,
            deadline_seconds=spec.deadline_seconds and spec.deadline_seconds - (now - request.accepted_seconds),
            traceparent=request.root.traceparent,
            salt=spec.salt,
        )
        age_ms = round((now - request.accepted_seconds) * 1000)
        chosen.decode.send(Open(job, request.prefill, age_ms))
        chosen.decode.count(len(job.tokens) if chosen.prefill is None else 0)
        if chosen.prefill is not None:
            chosen.prefill.send(Prefill(job, chosen.decode.hello.address, chosen.decode.incarnation))
            chosen.prefill.count(len(job.tokens))

    def _route(self, request: GatewayRequest, decode_lost: bool) -> Route | None:
        chosen = self._try_route(request, decode_lost)
        if chosen is None and request.failed:
            request.failed.clear()  # nobody else is left: try those again
            chosen = self._try_route(request, decode_lost)
        return chosen

    def _try_route(self, request: GatewayRequest, decode_lost: bool) -> Route | None:
        for numerics in (request.numerics, "") if request.spec.allow_class_change else (request.numerics,):
            chosen = route(
                Need(len(request.spec.prompt) + len(request.emitted), numerics),
                decodes=self.workers.tier(Tier.DECODE),
                prefills=self.workers.tier(Tier.PREFILL),
                matched=lambda worker: self._matched(request, worker),
                local=self._local,
                keep=request.decode,
                last=None if decode_lost else request.prefill,
                first=request.prefill if decode_lost else None,
                refused=request.refused,
                failed=request.failed,
            )
            if chosen is not None:
                return chosen
        return None

    def _wait(self, request: GatewayRequest) -> None:
        """Nobody can take it now: say so if that cannot change, else wait for a worker or for room."""
        decodes = self.workers.tier(Tier.DECODE)
        left = sorted({d.numerics for d in decodes} - {request.numerics})
        if request.numerics and left and request.numerics not in {d.numerics for d in decodes}:
            began = f"the answer began in class {request.numerics}; left: {', '.join(left)}"
            self.end(request, ClassUnavailable(f"{began}. Start a worker of that class, or set allow_class_change"))
        elif decodes and all(request.refused.get(d.incarnation) is FullKind.EVER for d in decodes):
            tokens = len(request.spec.prompt) + request.spec.sampling.max_tokens
            what = f"prompt and max_tokens need {tokens} tokens; no worker's pool has that"
            self.end(request, PoolTooSmall("max_tokens", what))
        elif self._local is Local.NEVER and self._too_large(request):
            what = f"the prompt's {len(request.spec.prompt)} tokens exceed every prefill worker's pool"
            self.end(request, PoolTooSmall("prompt", what))
        else:
            request.phase, request.prefill, request.decode = RequestPhase.WAITING, None, None
            if request.patience is None:
                gone = Unavailable("no worker could take this request; try again later")
                loop = asyncio.get_running_loop()
                request.patience = loop.call_later(self._patience_seconds, self.end, request, gone)

    def _too_large(self, request: GatewayRequest) -> bool:
        prefills = self.workers.tier(Tier.PREFILL)
        return bool(prefills) and all(request.refused.get(p.incarnation) is FullKind.EVER for p in prefills)

    # ----

    def _current(self, ticket: Ticket, any_attempt: bool = False) -> GatewayRequest | None:
        request = self.requests.get(ticket.request)
        if request is None or request.phase is not RequestPhase.OPEN:
            return None
        return request if any_attempt or request.ticket == ticket else None

    def _show(self, request: GatewayRequest, worker: AttachedWorker, token: Token) -> None:
        if request.first_token_seconds is None:
            request.first_token_seconds = asyncio.get_running_loop().time()
        request.shown.append(token)
        request.numerics = worker.numerics
        request.events.put_nowait(token)
        if token.end is not End.NONE:
            request.ended_seconds = asyncio.get_running_loop().time()
            self.end(request)

    def _tell_cancel(self, request: GatewayRequest, incarnations: set[int | None]) -> None:
        for incarnation in sorted(incarnations - {None}):  # type: ignore[type-var]
            worker = self.workers.get(incarnation)
            if worker is not None and request.ticket is not None:
                worker.send(Cancel(request.id, request.ticket.attempt))

    def _matched(self, request: GatewayRequest, worker: AttachedWorker) -> int:
        """How many of the request's tokens the worker's prefix cache holds."""
        if not worker.prefix:
            return 0
        page_tokens = worker.hello.page_tokens
        key = (worker.hello.numerics, page_tokens)
        if key not in request.hashes:
            request.hashes[key] = block_hashes(
                request.spec.prompt, page_tokens=page_tokens, numerics=key[0], salt=request.spec.salt
            )
        hashes = request.hashes[key]
        return next((i for i, h in enumerate(hashes) if h not in worker.prefix), len(hashes)) * page_tokens
