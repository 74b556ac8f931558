"""Hands the requests of a worker that leaves over to other workers, before its process ends.

A worker that drains tells how long it stays (Drain). What will be done by then stays where it is. What would be cut off
goes on elsewhere at once, where another worker fits and has room; the rest follows shortly before the end. The old
worker gets Cancel when the new attempt begins, and the sequencer shows each position once: no token is lost, repeated
or changed. A request without another worker stays until the session ends, and then waits for one. No drain counts as a
death (gateway/sequencing/deaths.py)."""

import asyncio
import logging
from typing import Protocol

from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.sequencing.candidates import choose
from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.workers.attached import AttachedWorker
from gateway.workers.worker_figures import prompt_wait
from mesh.messages.jobs import Tier
from mesh.messages.message import Drain
from mesh.messages.reports import Load
from mesh.rules import Rules

log = logging.getLogger("baton.gateway")

LEFT_DRAINED = "drained"  # why an attempt is left, in traces and metrics
LAST_SHARE = 0.5  # the rest goes elsewhere in this last share of the stay
LAST_SECONDS = 5.0  # ... and in these last seconds at most
GUESSED_SECONDS = 0.05  # per token, until an answer shows its own pace
EARLY_SECONDS = 0.001  # a timer may fire by this much before its time


class HandOverHost(Protocol):
    """The sequencer, as far as handing over needs it."""

    @property
    def local(self) -> Local: ...

    @property
    def observer(self) -> RequestObserver: ...

    def in_seniority(self, phase: RequestPhase) -> list[GatewayRequest]:
        """Requests in this phase, the oldest first."""

    def raise_attempt(self, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        """The request gets other workers."""


class HandingOver:
    def __init__(self, workers: Workers, host: HandOverHost, rules: Rules) -> None:
        self._workers = workers
        self._host = host
        self._rules = rules
        self._leaves: dict[int, tuple[float, float]] = {}  # incarnation -> when it ends, and the last time to move on
        self._given: dict[int, tuple[Load, int]] = {}  # incarnation -> tokens handed to it since this Load of it
        self._timer: asyncio.TimerHandle | None = None

    def on_drain(self, worker: AttachedWorker, drain: Drain) -> None:
        if drain.grace_ms is None:
            return  # an operator wants no new requests there, and those that it has may end there
        now, stay = self._now(), drain.grace_ms / 1000
        self._leaves[worker.incarnation] = now + stay, now + stay - min(LAST_SECONDS, LAST_SHARE * stay)
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ---- once per heartbeat, while a worker leaves

    def _look(self) -> None:
        self.stop()
        self._leaves = {each: ends for each, ends in self._leaves.items() if self._workers.get(each) is not None}
        self._given = {each: given for each, given in self._given.items() if self._workers.get(each) is not None}
        for incarnation, (ends, last) in self._leaves.items():
            worker, now = self._workers.get(incarnation), self._now()
            if worker is not None:
                self._hand_over(worker, ends - now, now + EARLY_SECONDS >= last)
        if self._leaves:
            now = self._now()
            due = min(
                [
                    now + self._rules.heartbeat_seconds,
                    *(last for _, last in self._leaves.values() if last > now + EARLY_SECONDS),
                ]
            )
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _hand_over(self, worker: AttachedWorker, left_seconds: float, is_last: bool) -> None:
        moved = 0
        for request in self._host.in_seniority(RequestPhase.OPEN):
            if needs(request, worker) and (is_last or seconds_left(request, worker) > left_seconds):
                moved += self._move(request, worker, is_last)
        if moved:
            log.info("%s leaves: %d requests go on elsewhere", worker.session.name, moved)

    def _move(self, request: GatewayRequest, worker: AttachedWorker, is_last: bool) -> bool:
        """False: no other worker can take the request on now."""
        lost = request.decode == worker.incarnation
        chosen = choose(
            request, self._workers, self._host.local, decode_lost=lost, preferred=frozenset()
        )  # the worker that leaves takes no requests, so it is not chosen
        if chosen is None:
            return False
        load, given = self._given.get(chosen.decode.incarnation, (None, 0))
        given = given if load is chosen.decode.load else 0
        if not (is_last or has_room(request, chosen.decode, given)):
            return False
        given += tokens_of(request) + chosen.decode.hello.page_tokens
        self._given[chosen.decode.incarnation] = chosen.decode.load, given
        request.trace.leaves(self._now(), LEFT_DRAINED, worker.tier)
        self._host.observer.resumed(LEFT_DRAINED, request.choice.model)
        self._host.raise_attempt(request, decode_lost=lost)
        return True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def needs(request: GatewayRequest, worker: AttachedWorker) -> bool:
    """Does the request still need this worker? Prefill is not needed once decode has the pages. Examinations are short
    and stay."""
    mine = worker.incarnation
    here = request.decode == mine or (request.prefill == mine and not request.handed)
    return here and request.choice.examination is None


def seconds_left(request: GatewayRequest, worker: AttachedWorker) -> float:
    """How long the request may need the worker: at decode for all its tokens, at prefill for the prompts before it. A
    prompt that has begun there counts as done: another worker would compute it anew."""
    if worker.tier is Tier.PREFILL:
        return 0.0 if request.begun == worker.incarnation else prompt_wait(worker)
    tokens = request.choice.sampling.max_tokens - request.next_position
    pace = request.pace_seconds
    return tokens * (GUESSED_SECONDS if pace is None else pace)


def tokens_of(request: GatewayRequest) -> int:
    return len(request.choice.prompt) + request.next_position


def has_room(request: GatewayRequest, decode: AttachedWorker, given: int) -> bool:
    """Could the decode worker begin with the request at once? `given`: tokens of others that it gets besides, which its
    last report does not know."""
    tokens = tokens_of(request) + given
    return decode.load.waiting == 0 and decode.load.free_pages * decode.hello.page_tokens > tokens
