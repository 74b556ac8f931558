"""One process of a run, and how others see what it is doing."""

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from decode_svc.worker import DecodeWorker
from gateway.attaching.service import Gateway
from kvtransfer.memory import MemoryPool
from mesh.messages.jobs import Tier
from mesh.sessions.session import Session
from prefill_svc.worker import PrefillWorker
from tests.sim.model import SimRunner
from tests.sim.seeds.nodes import SimNode
from tests.sim.seeds.pools import WatchedPool
from tests.sim.workers import SimWorker


class ServedCall(Protocol):
    """A client's call, as the gateway's process and its end concern it."""

    @property
    def served(self) -> bool:
        """The gateway has the request, and the client reads what comes."""

    def break_off(self) -> None: ...


@dataclass
class FleetProcess:
    name: str
    node: SimNode
    tasks: list["asyncio.Task[Any]"] = field(default_factory=list)
    began: float = 0.0
    alive: bool = True
    replaced: bool = False  # another process has its address
    leaving: bool = False  # it was asked to leave
    frozen_since: float | None = None
    stands_still: bool = False  # it stays frozen when the run heals
    stood_still: list[tuple[float, float]] = field(default_factory=list)  # from when to when

    @property
    def runs(self) -> bool:
        return self.alive and not self.node.frozen

    def freeze(self, now: float) -> None:
        if self.frozen_since is None:
            self.frozen_since = now
        self.node.freeze()

    def still_seconds(self, since: float, now: float) -> float:
        """For how long it stood still as a whole since then."""
        stood = [*self.stood_still, *([(self.frozen_since, now)] if self.frozen_since is not None else [])]
        return sum(max(0.0, end - max(begin, since)) for begin, end in stood)

    def thaw(self, now: float) -> None:
        if self.frozen_since is not None:
            self.stood_still.append((self.frozen_since, now))
            self.frozen_since = None
            self.node.thaw()


@dataclass
class WorkerProcess(FleetProcess):
    tier: Tier = Tier.PREFILL
    incarnation: int = 0
    numerics: str = ""
    hangs_for_ever: bool = False  # its step goes on hanging when the run heals
    expired: list[Session] = field(default_factory=list)  # its sessions with gateways that were silent
    busy_seconds: float = -inf  # when it had a request, or a step under way, for the last time; as the world counts
    was_busy: bool = False
    ran_seconds: float = -inf  # when it had its last event
    computed_seconds: dict[int, float] = field(default_factory=dict)  # when it computed each request for the last time
    unasked_looks: int = 0  # so many of the judge's looks in a row found a prompt that it should have asked for
    made: SimWorker | None = None

    @property
    def worker(self) -> PrefillWorker | DecodeWorker:
        assert self.made is not None
        return self.made.worker

    @property
    def pages(self) -> WatchedPool:
        assert self.made is not None and isinstance(self.made.pages, WatchedPool)
        return self.made.pages

    @property
    def pool(self) -> MemoryPool:
        assert self.made is not None
        return self.made.pool

    @property
    def runner(self) -> SimRunner:
        assert self.made is not None
        return self.made.runner

    def stages(self, request: int | None = None) -> set[str]:
        """Phases of its requests, or of one of them."""
        worker = self.worker
        if isinstance(worker, DecodeWorker):
            return {r.phase.value for r in worker.requests.values() if request in (None, r.key)}
        return {p.phase.value for p in worker.prompts if request in (None, p.ticket.request)}

    @property
    def busy(self) -> bool:
        """It has a request, or a step goes on although its request has ended."""
        return self.worker.busy or self.runner.computing

    def note_busy(self, now: float) -> None:
        """After each of its events."""
        self.ran_seconds = now
        for request in self.computing():
            self.computed_seconds[request] = now
        if (busy := self.busy) or self.was_busy:
            self.busy_seconds = now
        self.was_busy = busy

    def computed_lately(self, seconds: float) -> set[int]:
        """The requests that it computed in the last seconds in which it ran."""
        since = self.ran_seconds - seconds
        return self.computing() | {key for key, last in self.computed_seconds.items() if last >= since}

    def computing(self) -> set[int]:
        """The requests that it computes, or has computed pages of."""
        worker = self.worker
        if isinstance(worker, DecodeWorker):
            return {r.key for r in worker.requests.values() if r.phase.value in ("landing", "running")}
        return {p.ticket.request for p in worker.prompts if p.phase.value in ("pushing", "held")}


@dataclass
class GatewayProcess(FleetProcess):
    gateway: Gateway | None = None
    leaves_at: float | None = None  # by its own clock: when its time to end requests is over, once it drains
    calls: list["ServedCall"] = field(default_factory=list)  # calls of the clients that it serves

    @property
    def core(self) -> Gateway:
        assert self.gateway is not None
        return self.gateway

    def stages(self, request: int | None = None) -> set[str]:
        return {r.phase.value for r in self.core.sequencer.requests.values() if request in (None, r.id)}


@dataclass(frozen=True)
class Trouble:
    """A time in which a process could not serve."""

    name: str
    kind: str
    began: float
    ended: float
