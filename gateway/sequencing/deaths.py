"""Gives the requests of a lost worker to others, and ends a request that may be what kills its workers.

Between the steps of a request's life, whenever a session with a worker ends or a worker hangs. The gateway cannot see a
process end: the end of a session stands for it, unless the lease ended it here, the worker drained, this gateway was
stopped itself, or the same process comes back. A death counts only under a request that the worker was computing, and
only if no other worker died at the same time: what ends several workers at once is no request."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.patience import Patience
from gateway.sequencing.reasons import ROOM
from gateway.sequencing.requests import Death, GatewayRequest, RequestPhase
from gateway.sequencing.startup_wait import Settling
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError, WorkersDied
from mesh.rules import Rules

KEPT_DEATHS = 4096  # deaths that are remembered, over all workers
LEFT_STALLED = "stalled"  # why an attempt is left, in traces and metrics


class DeathsHost(Protocol):
    """The sequencer, as far as deaths need it."""

    def in_seniority(self, phase: RequestPhase) -> list[GatewayRequest]:
        """Requests in this phase, the oldest first."""

    def raise_attempt(self, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        """The request gets other workers."""

    def leave(self, request: GatewayRequest, incarnations: set[int | None]) -> None:
        """These workers forget the current attempt and all earlier ones."""

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """The end of a worker, whichever requests it had."""

    incarnation: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeathVerdict:
    guilty: bool  # the request may be what kills its workers
    wait_seconds: float  # until the verdict is final; 0: it is

    @property
    def stops(self) -> bool:
        """No attempt of the request begins now."""
        return self.guilty or self.wait_seconds > 0


NO_DEATHS = DeathVerdict(False, 0.0)


class Deaths:
    def __init__(
        self,
        host: DeathsHost,
        requests: Mapping[int, GatewayRequest],
        patience: Patience,
        settling: Settling,
        *,
        observer: RequestObserver,
        rules: Rules,
    ) -> None:
        self._host = host
        self._requests = requests
        self._patience = patience
        self._settling = settling
        self._observer = observer
        self._rules = rules
        self._all: deque[WorkerDeath] = deque(maxlen=KEPT_DEATHS)
        self._verdicts: dict[int, asyncio.TimerHandle] = {}  # timers for requests that wait for a verdict, by id

    # ---- workers are lost, and come back

    def ended(self, worker: AttachedWorker) -> None:
        """The session with a worker ended. The lease that ended here and a drain say that its process did not. A
        gateway that was stopped itself cannot know what the worker computed when it died: that death is no request's,
        and excuses those that come beside it."""
        died = worker.session.ended_there and not worker.draining
        if died:
            self._all.append(WorkerDeath(worker.incarnation, self._now()))
        died = died and not self._settling.stopped
        needing, lost = self._needing(worker), self._lost_with(worker) if died else []
        blamed = suspects(needing, worker, others=bool(lost)) if died else set()
        for request in needing:
            request.trace.dies(self._now(), worker.tier, worker.session.heard_seconds)
            self._move_on(request, worker, "gone", counts=request.id in blamed)

    def landing_lost(self, request: GatewayRequest) -> None:
        """Decode reports that a landing is lost. It may notice the end of a prefill worker before this gateway does."""
        if request.begun is not None and request.begun == request.prefill:
            request.lost_from = Death(request.prefill, self._now(), request.next_position - request.base)

    def _lost_with(self, worker: AttachedWorker) -> list[GatewayRequest]:
        """Requests that the worker computed when it died and that have left it a moment before. The death counts under
        them. A worker that has sent something since decode lost their landings did not die then."""
        found, since = list[GatewayRequest](), self._now() - self._rules.together_seconds
        for request in self._requests.values():
            lost = request.lost_from
            if lost is None or lost.incarnation != worker.incarnation:
                continue
            if lost.seconds >= max(since, worker.session.heard_seconds):
                request.deaths.append(lost)
                request.lost_from = None
                found.append(request)
        return found

    def hung(self, worker: AttachedWorker) -> None:
        """The worker lives, and its compute stands still: a request may be the cause of that too."""
        self._all.append(WorkerDeath(worker.incarnation, self._now()))
        needing = self._needing(worker)
        blamed = suspects(needing, worker)
        for request in needing:
            request.trace.hangs(self._now(), worker.tier)
            self._move_on(request, worker, "hung", counts=request.id in blamed)

    def stalled(self, request: GatewayRequest) -> None:
        """Nothing happens to the request where it is, and no worker is known to be the cause."""
        request.trace.leaves(self._now(), LEFT_STALLED)
        self._observer.resumed(LEFT_STALLED, request.choice.model)
        self._host.raise_attempt(request)

    def returned(self, incarnation: int) -> None:
        """This process lives: only its session had ended, or it goes on after it hung."""
        self._all = deque((each for each in self._all if each.incarnation != incarnation), KEPT_DEATHS)
        for request in self._requests.values():
            request.deaths = [each for each in request.deaths if each.incarnation != incarnation]

    def _needing(self, worker: AttachedWorker) -> list[GatewayRequest]:
        """Requests that need this worker, the oldest first: prefill is not needed once decode has the pages."""
        mine = worker.incarnation
        opened = self._host.in_seniority(RequestPhase.OPEN)
        return [each for each in opened if each.decode == mine or (each.prefill == mine and not each.handed)]

    def _move_on(self, request: GatewayRequest, worker: AttachedWorker, why: str, *, counts: bool) -> None:
        if counts:
            tokens = request.next_position - request.base
            request.deaths.append(Death(worker.incarnation, self._now(), tokens))
        self._observer.resumed(f"{worker.tier.value}_{why}", request.choice.model)
        self._host.raise_attempt(request, decode_lost=request.decode == worker.incarnation)

    # ---- the verdict about a request

    def verdict(self, request: GatewayRequest) -> DeathVerdict:
        """Whether another attempt of the request may begin, after the deaths of its workers."""
        if not request.deaths:
            return NO_DEATHS
        guilty = self._guilty(request)
        return DeathVerdict(guilty, max(0.0, self._seconds_to_verdict(request, guilty)))

    def stop(self, request: GatewayRequest, verdict: DeathVerdict) -> None:
        """Hold the request until its workers' deaths can be judged, or end it: a moment later the gateway knows which
        workers died together and which come back."""
        if verdict.wait_seconds > 0:
            self._hold(request, verdict.wait_seconds)
        else:
            died = len(request.deaths)
            self._host.end(request, WorkersDied(f"{died} workers ended while they computed this request"))

    def _guilty(self, request: GatewayRequest) -> bool:
        counted = [each for each in request.deaths if self._counts(each, request.deaths)]
        return len(counted) >= self._rules.deaths or len(request.deaths) >= self._rules.deaths_in_all

    def _counts(self, death: Death, deaths: list[Death]) -> bool:
        """False: the worker had computed many tokens of the request before it died, or others died at the same time
        that did not compute the request."""
        own = {each.incarnation for each in deaths}
        together = any(
            each.incarnation not in own and abs(each.seconds - death.seconds) <= self._rules.together_seconds
            for each in self._all
        )
        return not together and death.tokens < self._rules.proven_tokens

    def _seconds_to_verdict(self, request: GatewayRequest, guilty: bool) -> float:
        """How long the request waits before another worker gets it; 0: no longer. One death alone costs no time."""
        times = sorted(each.seconds for each in request.deaths)
        if guilty:
            return times[-1] + self._rules.judged_seconds - self._now()
        if len(times) > 1 and times[-1] - times[-2] <= self._rules.together_seconds:
            return times[-1] + self._rules.together_seconds - self._now()
        return 0.0

    def _hold(self, request: GatewayRequest, seconds: float) -> None:
        self._host.leave(request, {request.decode, request.prefill})
        request.prefill = request.decode = None
        self._patience.wait(request, lambda: ROOM)
        if request.id not in self._verdicts:
            later = asyncio.get_running_loop().call_later(seconds, self._judge, request)
            self._verdicts[request.id] = later

    def _judge(self, request: GatewayRequest) -> None:
        del self._verdicts[request.id]
        if request.phase is RequestPhase.WAITING:
            self._host.raise_attempt(request)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def suspects(needing: Sequence[GatewayRequest], worker: AttachedWorker, *, others: bool = False) -> set[int]:
    """Ids of those of the requests that need the worker, the oldest first, that it was computing, as far as the gateway
    knows. If it knows of none, the last notice died with the worker: then the oldest counts that waited there for its
    first step, because its turn came first. `others`: it was computing requests that have left it meanwhile."""
    found = {request.id for request in needing if computes(request, worker)}
    if others:
        return found
    waiting = [request.id for request in needing if request.prefill in (None, worker.incarnation)]
    return found or set(waiting[:1])


def computes(request: GatewayRequest, worker: AttachedWorker) -> bool:
    """Does the gateway know that the worker's steps compute the request?"""
    has_pages = request.awaited == request.decode == worker.incarnation and request.prefill is not None
    return has_pages or request.handed or request.begun == worker.incarnation
