"""Notices workers that make no progress while their sessions live, and moves their requests to others.

Each stage of a request's life at a worker has a deadline: its queue, its prefill and each step of its decode. The
compute loop of a worker reports after every step (Load, tokens), and LongStep tells how long a step takes and how long
one may take there, which the worker derives from the steps that it has measured. A worker from which nothing of that
comes, though a request waits for it, is hung: it gets no new requests, and those that it has go on elsewhere. When its
loop reports again, it is used again. The stage between, a landing, has a deadline of its own at decode."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.routing.registry import Workers
from gateway.sequencing.deaths import Deaths
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Ticket
from mesh.messages.message import Message
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import Begun, Embedded, Load, LongStep, Prefilled, PrefixChange, Scored, Tokens
from mesh.rules import Rules

log = logging.getLogger("baton.gateway")

# Only a worker's compute loop sends these; everything else comes from its event loop.
OF_THE_LOOP = (PackedTokens, Tokens, Load, Prefilled, PrefixChange, Scored, Embedded)
# These say how that loop stands, and nothing else: no other part of the gateway uses them.
ABOUT_THE_LOOP = (Begun, LongStep)


class HungHost(Protocol):
    """The sequencer, as far as hung workers concern it."""

    @property
    def requests(self) -> Mapping[int, GatewayRequest]: ...

    @property
    def deaths(self) -> Deaths: ...

    def current(self, ticket: bytes) -> GatewayRequest | None:
        """The request whose current attempt has this ticket."""

    def on_room(self, worker: AttachedWorker) -> None:
        """The worker takes requests again."""


class HungWorkers:
    def __init__(self, workers: Workers, host: HungHost, *, changed: Callable[[], None], rules: Rules) -> None:
        self._workers = workers
        self._host = host
        self._changed = changed
        self._rules = rules
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def hear(self, worker: AttachedWorker, message: Message) -> None:
        """A message of a worker: what it shows of the worker's compute loop."""
        if isinstance(message, OF_THE_LOOP):
            worker.moved_seconds = asyncio.get_running_loop().time()
            worker.computes(0.0, 0.0)
            if worker.hung:
                self._recovered(worker)
        elif isinstance(message, LongStep):
            worker.computes(message.running_ms / 1000, message.limit_ms / 1000)
            began = asyncio.get_running_loop().time() - worker.step_seconds
            worker.moved_seconds = max(worker.moved_seconds, began)  # until then the loop went on from step to step
        elif isinstance(message, Begun):
            request = self._host.current(message.ticket.pack())
            if request is not None:
                request.begun, request.begun_seconds = worker.incarnation, asyncio.get_running_loop().time()

    # ---- once per heartbeat

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._rules.heartbeat_seconds
        self._timer = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._due > self._rules.late_seconds:  # this gateway was stopped itself: reports are on their way
            for worker in self._workers:
                worker.moved_seconds = now
        silent = {
            worker.incarnation: worker
            for worker in self._workers
            if not worker.hung and now - worker.moved_seconds > self._patience_seconds(worker)
        }
        self._schedule()
        if silent:
            self._judge(silent, now)

    def _judge(self, silent: dict[int, AttachedWorker], now: float) -> None:
        """Leave those of the silent workers that should compute a request and do not. Where a request may wait for
        something else than a step, it alone begins anew: a worker that has forgotten it hears of it again."""
        hung, stalled = dict[int, AttachedWorker](), list[tuple[GatewayRequest, Ticket | None]]()
        for request in self._host.requests.values():
            worker = silent_for(request, silent)
            if worker is None or request.phase is not RequestPhase.OPEN:
                continue
            waited_seconds = now - max(worker.moved_seconds, request.moved_seconds)
            if waited_seconds > self._patience_seconds(worker):
                if must_compute(request, worker):
                    hung[worker.incarnation] = worker
                else:
                    stalled.append((request, request.ticket))
        for worker in hung.values():
            worker.hangs(True)  # so that no request goes from one of them to the next
        for worker in hung.values():
            self._give_up(worker, now)
        for request, ticket in stalled:
            left = request.awaited in hung or request.decode in hung
            if request.phase is RequestPhase.OPEN and request.ticket is ticket and not left:
                self._host.deaths.stalled(request)

    def _patience_seconds(self, worker: AttachedWorker) -> float:
        """A step may take half of the worker's own limit before the gateway leaves the worker. Without LongStep no
        step is under way, as far as the worker knows."""
        if not worker.step_limit_seconds:
            return self._rules.silent_seconds
        return max(self._rules.hung_seconds, worker.step_limit_seconds / 2)

    def _give_up(self, worker: AttachedWorker, now: float) -> None:
        silent_seconds, step_seconds = now - worker.moved_seconds, worker.step_seconds
        step = f"its last step has been computing for {step_seconds:.1f} s" if step_seconds else "and no long step"
        log.error("%s is hung: no step was over for %.1f s, %s", worker.session.name, silent_seconds, step)
        self._changed()
        self._host.deaths.hung(worker)

    def _recovered(self, worker: AttachedWorker) -> None:
        worker.hangs(False)
        log.warning("%s goes on: its step is over", worker.session.name)
        self._changed()
        self._host.deaths.returned(worker.incarnation)
        self._host.on_room(worker)


def silent_for(request: GatewayRequest, silent: dict[int, AttachedWorker]) -> AttachedWorker | None:
    """The silent worker that keeps the request waiting. That is decode if a step of it takes too long, even while
    prefill still has the prompt or has lost it: nothing goes on there."""
    decode = silent.get(request.decode or 0)
    if decode is not None and decode.step_limit_seconds:
        return decode
    return silent.get(request.awaited or 0)


def must_compute(request: GatewayRequest, worker: AttachedWorker) -> bool:
    """False: the request may wait there for something else than a step: for a landing, or for room. A worker that has
    reported nothing since the request came has not looked at it."""
    in_step = request.handed or worker.load.running > 0 or worker.step_limit_seconds > 0
    return in_step or worker.moved_seconds <= request.opened_seconds
