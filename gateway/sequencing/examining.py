"""Routes examinations, and collects what their workers report: logprobs of prompts, and embeddings.

Such a request has one worker and no decode (docs/examinations.md). The sequencer holds it beside all
others, so deaths, deadlines, cancels and waiting are the same for it; what differs is here. It goes to a prefill
worker, or to a decode worker if no prefill worker can take it. Another attempt begins from nothing: what an earlier one
reported is dropped, and the front door gets the findings of one attempt, whole."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Protocol

from gateway.core.interface import PromptScores
from gateway.routing.registry import Workers
from gateway.routing.router import Local, RouteDecision
from gateway.sequencing.candidates import adapter_missing, without_adapter
from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.patience import Patience
from gateway.sequencing.reasons import ROOM, all_refuse_for_ever
from gateway.sequencing.requests import GatewayRequest
from gateway.tracing.attributes import examining_attributes
from gateway.workers.attached import AttachedWorker
from gateway.workers.worker_figures import tokens_per_second
from mesh.errors import BatonError, Cancelled, InvalidRequest, PoolTooSmall
from mesh.messages.jobs import Pooling, Tier
from mesh.messages.orders import Examine
from mesh.messages.reports import Embedded, Scored

EXAMINER = "worker that examines prompts"


class ExaminingHost(Protocol):
    """The sequencer, as far as examinations need it."""

    def current(self, ticket: bytes) -> GatewayRequest | None:
        """The open request whose current attempt has this packed ticket."""

    def begin_attempt(self, request: GatewayRequest) -> float:
        """The request is open and has a new ticket from now on; returns the time."""

    def leave(self, request: GatewayRequest, incarnations: set[int | None]) -> None:
        """These workers forget the current attempt and all earlier ones."""

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None: ...


class Examining:
    def __init__(
        self, host: ExaminingHost, workers: Workers, patience: Patience, *, local: Local, observer: RequestObserver
    ) -> None:
        self._host = host
        self._workers = workers
        self._patience = patience
        self._local = local
        self._observer = observer

    def raise_attempt(self, request: GatewayRequest) -> None:
        """The next attempt of an examination, on the worker that will have it done first."""
        clock = asyncio.get_running_loop().time
        began = clock()
        usable = list(self._usable(request))
        worker = min(usable, key=lambda each: cost_seconds(request, each), default=None)
        decision = RouteDecision.WAIT
        if worker is not None:
            decision = RouteDecision.REMOTE if worker.tier is Tier.PREFILL else RouteDecision.LOCAL_NO_PREFILL
        self._observer.routed(decision, clock() - began)
        self._host.leave(request, {request.decode, request.prefill} - {worker and worker.incarnation})
        begin_anew(request)
        if worker is None:
            self._wait_or_fail(request)
            return
        now = self._host.begin_attempt(request)
        prefills = worker.tier is Tier.PREFILL
        ticket = request.ticket
        trace = request.trace
        request.prefill, request.decode = (worker.incarnation, None) if prefills else (None, worker.incarnation)
        assert ticket is not None and request.choice.examination is not None, "an attempt of an examination"
        job = request.job(now)
        worker.send(
            Examine(
                replace(job, traceparent=trace.sends(ticket, worker.tier, worker.name, now)), request.choice.examination
            )
        )
        worker.count(len(job.prompt))
        cost, resumed = cost_seconds(request, worker), ticket.attempt > 1
        trace.routed(began, clock(), examining_attributes(worker, cost, len(usable), resumed=resumed))

    def _usable(self, request: GatewayRequest) -> Iterator[AttachedWorker]:
        """Prefill workers if one can take it, else decode workers, unless the setting `local` forbids that. Where
        tokens follow, prefill workers of a class that decode has too go first: the answer is of one class."""
        workers = self._workers.of(request.choice.model)
        decodes = workers.tier(Tier.DECODE)
        lacking = without_adapter(request, self._workers)
        able = {tier: [each for each in workers.tier(tier) if takes(each, request, lacking)] for tier in Tier}
        prefills = able[Tier.PREFILL]
        if request.choice.sampling.max_tokens:
            classes = {decode.numerics for decode in decodes}
            prefills = [worker for worker in prefills if worker.numerics in classes] or prefills
        if prefills or self._local is Local.NEVER:
            yield from prefills
        else:
            yield from able[Tier.DECODE]

    def _wait_or_fail(self, request: GatewayRequest) -> None:
        tiers = (Tier.PREFILL,) if self._local is Local.NEVER else (Tier.PREFILL, Tier.DECODE)
        mine = self._workers.of(request.choice.model)
        workers = [worker for tier in tiers for worker in mine.tier(tier)]
        able = [worker for worker in workers if worker.hello.examines]
        if workers and not able:
            what = "the attached workers run on GPUs, which neither compute embeddings nor logprobs of prompts"
            self._host.end(request, InvalidRequest(None, f"{what}; attach a prefill worker with device = cpu"))
        elif (missing := adapter_missing(request, self._workers, self._local)) is not None:
            self._host.end(request, missing)
        elif all_refuse_for_ever(request, able):
            field, tokens = request.choice.prompt_field, len(request.choice.prompt)
            self._host.end(request, PoolTooSmall(field, f"{field} has {tokens} tokens; no worker's pool holds so many"))
        else:
            request.prefill = request.decode = None
            self._patience.wait(request, lambda: ROOM if able else EXAMINER)

    # ---- what workers report

    def on_scored(self, worker: AttachedWorker, scored: Scored) -> None:
        request = self._host.current(scored.ticket.pack())
        if request is not None and scored.first == scored_so_far(request):
            request.findings.append(scored)
            if scored_so_far(request) >= len(request.choice.prompt) - 1:
                self._complete(request, worker)

    def on_embedded(self, worker: AttachedWorker, embedded: Embedded) -> None:
        request = self._host.current(embedded.ticket.pack())
        if request is not None:
            request.findings.append(embedded)
            self._complete(request, worker)

    def _complete(self, request: GatewayRequest, worker: AttachedWorker) -> None:
        request.numerics = worker.numerics
        self._observer.examined(request)
        self._host.end(request)


def begin_anew(request: GatewayRequest) -> None:
    """Drop the reports of an earlier attempt: the next worker may cut the prompt into other chunks, and it may be of
    another numerics class."""
    request.findings.clear()


def takes(worker: AttachedWorker, request: GatewayRequest, lacking: Collection[int] = ()) -> bool:
    """Can this worker examine the request's prompt? `lacking`: workers without its adapter."""
    return (
        worker.hello.examines
        and worker.incarnation not in request.refused
        and worker.incarnation not in lacking
        and request.choice.numerics in ("", worker.numerics)
    )


def cost_seconds(request: GatewayRequest, worker: AttachedWorker) -> float:
    """Estimated time until it is done. Only an embedding of the last token skips what a prefix cache holds."""
    examination, tokens = request.choice.examination, len(request.choice.prompt)
    if examination is not None and examination.pooling is Pooling.LAST:
        tokens -= request.cached_tokens(worker)
    return (worker.load.queued_tokens + worker.unreported_tokens + max(1, tokens)) / tokens_per_second(worker)


def scored_so_far(request: GatewayRequest) -> int:
    return sum(part.count for part in request.findings if isinstance(part, Scored))


class ExaminationReply:
    """The core's ExaminationStream."""

    def __init__(self, host: ExaminingHost, request: GatewayRequest) -> None:
        self._host, self._request = host, request

    async def scores(self) -> PromptScores:
        await self._finish()
        parts = tuple(part for part in self._request.findings if isinstance(part, Scored))
        return PromptScores(self._request.choice.prompt, parts)

    async def embedding(self) -> bytes:
        await self._finish()
        return next(part.values for part in self._request.findings if isinstance(part, Embedded))

    async def _finish(self) -> None:
        await self._request.over.wait()
        if self._request.error is not None:
            raise self._request.error

    @property
    def numerics(self) -> str:
        return self._request.numerics

    @property
    def cached_tokens(self) -> int:
        return self._request.prefilled.cached_tokens if self._request.prefilled else 0

    def cancel(self) -> None:
        self._host.end(self._request, Cancelled("the client went away"))
