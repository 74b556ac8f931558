"""The gateway itself: it listens for workers, holds one stream to each, and hands the sequencer what comes over them.

Requests enter through `submit` (the front doors are in http.py and grpc_api.py) and leave as an ordered stream of
tokens. Nothing here outlives the process: a gateway that restarts knows the mesh again within one heartbeat."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

from gateway.core import ChoiceRequest
from gateway.requests import GatewayRequest, RequestPhase
from gateway.router import Local
from gateway.sequencer import Sequencer
from gateway.workers import AttachedWorker, Workers
from mesh.errors import BatonError, Cancelled, Unavailable
from mesh.messages import (
    Drain,
    End,
    Full,
    Hello,
    Load,
    Lost,
    Message,
    Prefilled,
    PrefixChange,
    Register,
    Tier,
    Token,
    Tokens,
)
from mesh.network import Channel, Listening, Network, StreamClosed
from mesh.rules import RULES, Rules
from mesh.session import Session
from mesh.telemetry import Telemetry

log = logging.getLogger("baton.gateway")


@dataclass(frozen=True, slots=True)
class Timings:
    """Of one request."""

    queue_seconds: float | None  # until its prompt's first step; None: not known
    prefill_seconds: float | None  # from then to the first token
    first_token_seconds: float  # since it was accepted
    handoff_seconds: float  # from the first token until decode went on
    decode_seconds: float  # from the first token to the last
    total_seconds: float
    attempts: int
    cached_tokens: int  # of the prompt, found in a prefix cache
    drafted_tokens: int  # verified beside tokens that the client has
    accepted_tokens: int  # of these, what the client has
    decode_steps: int  # that yielded the tokens behind the first


class Handle:
    """One request as the front doors hold it."""

    def __init__(self, sequencer: Sequencer, request: GatewayRequest) -> None:
        self._sequencer, self._request = sequencer, request
        self._taken = self._drafted = self._accepted = 0  # tokens that the front door took; by speculation

    async def events(self) -> AsyncIterator[Token]:
        """Each token once, in order; raises what ended the request if that was no token."""
        while True:
            event = await self._request.events.get()
            if isinstance(event, BatonError):
                raise event
            self._taken += 1
            self._drafted += event.drafted
            self._accepted += event.accepted
            yield event
            if event.end is not End.NONE:
                return

    @property
    def seed(self) -> int:
        return self._request.spec.sampling.seed

    @property
    def numerics(self) -> str:
        return self._request.numerics

    @property
    def timings(self) -> Timings:
        request = self._request
        began, ended = request.accepted_seconds, request.ended_seconds or asyncio.get_running_loop().time()
        first, handed = request.first_token_seconds or ended, request.handed_seconds or ended
        attempts = request.ticket.attempt if request.ticket else 0
        prefilled = request.prefilled
        return Timings(
            queue_seconds=prefilled.queued_seconds if prefilled else None,
            prefill_seconds=prefilled.computed_seconds if prefilled else None,
            first_token_seconds=first - began,
            handoff_seconds=max(0.0, handed - first),
            decode_seconds=ended - first,
            total_seconds=ended - began,
            attempts=attempts,
            cached_tokens=prefilled.cached_tokens if prefilled else 0,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            decode_steps=max(0, self._taken - self._accepted - 1),
        )

    def cancel(self) -> None:
        self._sequencer.end(self._request, Cancelled("the client went away"))


class Gateway:
    def __init__(
        self,
        network: Network,
        *,
        random: Random,
        telemetry: Telemetry,
        model: str,
        local: Local = Local.AUTO,
        max_waiting: int = 1024,
        patience_seconds: float = 30.0,
        rules: Rules = RULES,
    ) -> None:
        self.workers = Workers()
        self._model, self._local = model, local
        self.changed = asyncio.Event()  # a worker came or went
        self._network, self._telemetry, self._rules = network, telemetry, rules
        self._max_waiting = max_waiting
        self._dialing: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sequencer = Sequencer(
            self.workers,
            rules=rules,
            random=random,
            local=local,
            patience_seconds=patience_seconds,
            on_end=self._retire,
        )

    # ---- for the front doors

    def submit(self, spec: ChoiceRequest) -> Handle:
        waiting = sum(request.phase is RequestPhase.WAITING for request in self.sequencer.requests.values())
        if waiting >= self._max_waiting:
            raise Unavailable(f"{waiting} requests are waiting already; try again later")
        now = asyncio.get_running_loop().time()
        tokens = len(spec.prompt)
        traceparent, name = spec.traceparent or None, spec.request_id
        root = self._telemetry.begin("request", traceparent, now, request_id=name, prompt_tokens=tokens)
        return Handle(self.sequencer, self.sequencer.accept(spec, root))

    def models(self) -> tuple[str, ...]:
        return (self._model,)

    @property
    def context_tokens(self) -> int:
        return min((w.hello.context_tokens for w in self.workers), default=0)

    @property
    def largest_pool_tokens(self) -> int:
        return max((w.load.total_pages * w.hello.page_tokens for w in self.workers.tier(Tier.DECODE)), default=0)

    def healthy(self) -> bool:
        """A decode worker is there, alone or with a prefill worker of its class."""
        decodes, prefills = self.workers.tier(Tier.DECODE), self.workers.tier(Tier.PREFILL)
        alone = self._local is not Local.NEVER
        return any(alone or any(p.numerics == d.numerics for p in prefills) for d in decodes)

    def tiers(self) -> dict[str, int]:
        return {tier.value: len(self.workers.tier(tier)) for tier in Tier}

    # ---- for workers

    async def listen(self, address: str) -> Listening:
        return await self._network.listen(address, {}, self.on_register)

    def on_register(self, register: Register) -> None:
        if register.incarnation not in self._dialing and self.workers.get(register.incarnation) is None:
            self._dialing.add(register.incarnation)
            task = asyncio.get_running_loop().create_task(self._attach(register))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attach(self, register: Register) -> None:
        try:
            stream = await self._network.dial(register.address, Channel.ATTACH)
        except StreamClosed:
            self._dialing.discard(register.incarnation)
            return
        session = Session(stream, rules=self._rules, name=f"{register.tier.value} {register.address}")
        known: list[AttachedWorker] = []

        def on_message(message: Message) -> None:
            if isinstance(message, Hello):
                worker = AttachedWorker(message, session, message.load)
                worker.change(message.prefix)
                known.append(worker)
                self.workers.add(worker)
                self._dialing.discard(worker.incarnation)
                self.changed.set()
                log.info("%s at %s is up, class %s", register.tier.value, register.address, worker.numerics)
                self.sequencer.on_room(worker)
            elif known:
                self._handle(known[0], message)

        await session.run(on_message)
        self._dialing.discard(register.incarnation)
        for worker in known:
            if self.workers.get(worker.incarnation) is worker:
                self.workers.remove(worker)
                self.changed.set()
                log.warning("%s at %s is gone", register.tier.value, register.address)
                self.sequencer.on_end(worker)

    def _handle(self, worker: AttachedWorker, message: Message) -> None:
        match message:
            case Tokens():
                self.sequencer.on_tokens(worker, message)
            case Prefilled():
                self.sequencer.on_prefilled(message)
            case Drain():
                worker.draining = True
                self.changed.set()
            case Lost():
                self.sequencer.on_lost(worker, message)
            case Full():
                self.sequencer.on_full(worker, message)
            case Load():
                worker.report(message)
                if worker.tier is Tier.DECODE and message.free_pages:
                    self.sequencer.on_room(worker)
            case PrefixChange():
                worker.change(message)
            case _:
                raise TypeError(f"{type(message).__name__} is no message of a worker")

    def _retire(self, request: GatewayRequest, error: BatonError | None) -> None:
        now = asyncio.get_running_loop().time()
        attributes: dict[str, str | int] = {
            "tokens": len(request.shown),
            "attempts": request.ticket.attempt if request.ticket else 0,
        }
        if error is not None:
            attributes["error"] = type(error).__name__
        if request.first_token_seconds is not None:
            self._telemetry.record(
                "first_token", request.root.traceparent, request.accepted_seconds, request.first_token_seconds
            )
            self._telemetry.record("stream", request.root.traceparent, request.first_token_seconds, now)
        request.root.end(now, **attributes)

    async def aclose(self) -> None:
        for worker in list(self.workers):
            worker.session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
