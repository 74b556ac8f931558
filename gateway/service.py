"""The gateway itself: it holds one stream to each worker and hands the sequencer what the workers report.

Choices enter through `submit` (the front doors are gateway/http/api.py and gateway/grpc/api.py) and leave as an ordered
stream of tokens. Nothing here outlives the process: a gateway that restarts knows the mesh again within one
heartbeat."""

import asyncio
import logging
from collections.abc import Callable
from random import Random

from gateway.changes import Changes
from gateway.core import ChoiceRequest
from gateway.examining import ExaminationReply
from gateway.lacking import no_worker
from gateway.observability.observer import UNOBSERVED, RequestObserver
from gateway.observability.traces import RecentTraces
from gateway.requests import GatewayRequest
from gateway.router import Local
from gateway.sequencer import Sequencer
from gateway.streams import RequestStream
from gateway.workers import AttachedWorker, Workers
from mesh.door_config import DoorConfig
from mesh.errors import BatonError, Unavailable
from mesh.messages import (
    ClockReading,
    Drain,
    Embedded,
    Full,
    Hello,
    Load,
    Lost,
    Measures,
    Message,
    PageMap,
    Phases,
    Prefilled,
    PrefixChange,
    Register,
    Scored,
    Tier,
    Tokens,
)
from mesh.network import Channel, Listening, Network, StreamClosed
from mesh.reach_log import ReachLog
from mesh.rules import RULES, Rules
from mesh.session import Session
from mesh.telemetry import Silent

log = logging.getLogger("baton.gateway")

WITHOUT_WORKERS_SECONDS = 10.0  # after this time without any worker, requests no longer wait for one


class Gateway:
    """The product's Core."""

    def __init__(
        self,
        network: Network,
        *,
        random: Random,
        model: str,
        traces: RecentTraces | None = None,
        local: Local = Local.AUTO,
        max_waiting: int = 1024,
        limits: DoorConfig | None = None,
        patience_seconds: float = 30.0,
        observer: RequestObserver = UNOBSERVED,
        rules: Rules = RULES,
    ) -> None:
        self.workers = Workers()
        self.changed = Changes()  # set when a worker attaches, drains or leaves
        self.limits = limits or DoorConfig()
        self.sequencer = Sequencer(
            self.workers,
            rules=rules,
            random=random,
            local=local,
            patience_seconds=patience_seconds,
            reader_bytes=self.limits.reader_bytes,
            observer=observer,
        )
        self.observer = observer
        self.traces = traces or RecentTraces(Silent(), random=random)
        self._network, self._rules, self._model, self._local = network, rules, model, local
        self._max_waiting = max_waiting
        self._alone_since: float | None = None  # since when no worker is attached; None: one is
        self.draining = False
        self._reach_log = ReachLog(log)
        self._dialing: set[int] = set()  # incarnations of workers whose Hello has not come yet
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what the front doors use

    def admit(self, choices: int) -> None:
        if self.draining:
            raise Unavailable("this gateway shuts down and takes no new requests; call another one, or try again later")
        now, tally = asyncio.get_running_loop().time(), self.sequencer.tally
        if self._alone_since is not None and now - self._alone_since >= WITHOUT_WORKERS_SECONDS:
            raise no_worker(now - self._alone_since)
        if tally.waiting + choices > self._max_waiting:
            more = f"this request has {choices} more; " if choices > 1 else ""
            raise Unavailable(
                f"{tally.waiting} choices wait for their first token already; {more}the gateway takes at most "
                f"{self._max_waiting} (max_waiting): try again later",
                retry_after_seconds=tally.wait_seconds(now),
            )

    def submit(self, choice: ChoiceRequest) -> RequestStream:
        return RequestStream(self.sequencer, self._accept(choice))

    def examine(self, choice: ChoiceRequest) -> ExaminationReply:
        return ExaminationReply(self.sequencer, self._accept(choice))

    def _accept(self, choice: ChoiceRequest) -> GatewayRequest:
        self.admit(1)
        return self.sequencer.accept(choice)

    def load(self) -> dict[str, int]:
        waiting = self.sequencer.tally.waiting
        return {"running": len(self.sequencer.requests) - waiting, "waiting": waiting}

    def count_error(self, error: BatonError, *, refused: bool = False) -> None:
        self.observer.refused(error)
        self.sequencer.tally.refused += refused

    def models(self) -> tuple[str, ...]:
        return (self._model,)

    @property
    def model_hash(self) -> str:
        return next((worker.hello.model_hash for worker in self.workers), "")

    @property
    def context_tokens(self) -> int:
        return min((worker.hello.context_tokens for worker in self.workers), default=0)

    @property
    def largest_pool_tokens(self) -> int:
        return max((w.load.total_pages * w.hello.page_tokens for w in self.workers.tier(Tier.DECODE)), default=0)

    @property
    def adjusts_logits(self) -> bool:
        tiers = [[worker.hello.adjusts_logits for worker in self.workers.tier(tier)] for tier in Tier]
        return all(any(tier) or not tier for tier in tiers)

    def healthy(self) -> bool:
        """Whether a decode worker is attached, alone or with a prefill worker of its class, and the gateway stays."""
        if self.draining:
            return False
        decodes, prefills = self.workers.tier(Tier.DECODE), self.workers.tier(Tier.PREFILL)
        alone = self._local is not Local.NEVER
        return any(alone or any(p.numerics == d.numerics for p in prefills) for d in decodes)

    def tiers(self) -> dict[str, int]:
        return {tier.value: len(self.workers.tier(tier)) for tier in Tier}

    # ---- the gateway leaves

    def drain(self) -> None:
        """Take no new requests; those that run go on."""
        self.draining = True
        self.changed.set()

    def end_all(self, error: Callable[[GatewayRequest], BatonError]) -> int:
        """End every request that still runs with an error of its own; returns their number."""
        running = list(self.sequencer.requests.values())
        for request in running:
            self.sequencer.end(request, error(request))
        return len(running)

    # ---- workers register, attach, report and leave

    async def listen(self, address: str) -> Listening:
        self._alone_since = asyncio.get_running_loop().time()
        return await self._network.listen(address, {}, self.on_register)

    def on_register(self, register: Register) -> None:
        if register.incarnation not in self._dialing and self.workers.get(register.incarnation) is None:
            self._dialing.add(register.incarnation)
            task = asyncio.get_running_loop().create_task(self._attach(register))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attach(self, register: Register) -> None:
        """Dial a worker and handle its messages until the session ends."""
        try:
            stream = await self._network.dial(register.address, Channel.ATTACH)
        except StreamClosed as error:
            self._dialing.discard(register.incarnation)
            problem = (
                f"{error}. It registered with this address: check its `address`, `advertise_host` and `advertise_port`"
            )
            self._reach_log.failed(f"{register.tier.value} {register.address}", problem)
            return
        self._reach_log.reached(f"{register.tier.value} {register.address}")
        session = Session(stream, rules=self._rules, name=f"{register.tier.value} {register.address}")
        attached: list[AttachedWorker] = []  # empty until the first message, Hello

        def on_message(message: Message) -> None:
            if isinstance(message, Hello):
                attached.append(self._on_hello(session, message))
            elif attached:
                self._on_report(attached[0], message)

        await session.run(on_message)
        if session.expired:
            self.observer.lease_expired(register.tier)
        self._dialing.discard(register.incarnation)
        for worker in attached:
            self._on_session_end(worker)

    def _on_hello(self, session: Session, hello: Hello) -> AttachedWorker:
        worker = AttachedWorker(hello, session, hello.load)
        worker.change(hello.prefix)
        self.workers.add(worker)
        self._alone_since = None
        self._dialing.discard(worker.incarnation)
        self.changed.set()
        if self.traces.records_phases:
            worker.clock.start()
        log.info("%s is up, class %s", session.name, worker.numerics)
        self.sequencer.on_room(worker)
        return worker

    def _on_report(self, worker: AttachedWorker, message: Message) -> None:
        match message:
            case Tokens():
                self.sequencer.on_tokens(worker, message)
            case Prefilled():
                self.sequencer.on_prefilled(message)
            case Scored():
                self.sequencer.examining.on_scored(worker, message)
            case Embedded():
                self.sequencer.examining.on_embedded(worker, message)
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
            case Measures():
                worker.measure(message, asyncio.get_running_loop().time())
                self.observer.measured(worker)
            case Phases():
                self.traces.on_phases(worker.name, message, worker.clock.offset_seconds)
            case ClockReading():
                worker.clock.read(message)
            case Drain():
                worker.draining = True
                self.changed.set()
            case PageMap():
                worker.page_map = message
            case _:
                raise TypeError(f"{type(message).__name__} is no message of a worker")

    def _on_session_end(self, worker: AttachedWorker) -> None:
        worker.clock.stop()
        if self.workers.get(worker.incarnation) is worker:
            self.workers.remove(worker)
            self._alone_since = None if self.workers else asyncio.get_running_loop().time()
            self.changed.set()
            log.warning("%s is gone", worker.session.name)
            self.observer.gone(worker)
            self.sequencer.on_session_end(worker)

    async def aclose(self) -> None:
        for worker in list(self.workers):
            worker.session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
