"""All processes of a run: gateways and workers on nodes of their own, which are killed, stopped and replaced.

A process that has died is started again by a supervisor, as `baton up` does it. What an operator or a kernel would do
is done here, from outside all nodes."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

from decode_svc.requests import PageOwner
from decode_svc.speculation.speculation import DraftSource
from gateway.core import ChoiceRequest
from gateway.service import Gateway
from kvtransfer.memory import MemoryPool, Write
from mesh.door_config import DoorConfig
from mesh.jobs import Ticket, Tier
from mesh.messages import Message
from mesh.rules import Rules
from tests.sim.model import VOCABULARY
from tests.sim.seeds.coverage import Coverage
from tests.sim.seeds.deaths import DeathsOfWorkers
from tests.sim.seeds.nodes import NodeLoop, SimNode
from tests.sim.seeds.pools import WatchedPool
from tests.sim.seeds.processes import FleetProcess, GatewayProcess, Trouble, WorkerProcess
from tests.sim.seeds.story import SimWorld
from tests.sim.seeds.wires import NodeFabric, NodeNetwork, NodeTransport
from tests.sim.tenants import TenantTexts
from tests.sim.workers import WorkerOptions, start_worker

MEND_SECONDS = 20.0  # so long after a fault the mesh may still suffer from it


class Fleet:
    def __init__(self, world: SimWorld, loop: NodeLoop, rules: Rules, coverage: Coverage) -> None:
        self.world, self.loop, self.coverage = world, loop, coverage
        self.random = Random(world.seed)
        self.violations: list[str] = []
        self.failed = asyncio.Event()  # set at the first violation
        self.workers: dict[str, WorkerProcess] = {}  # by name: those that have the address now
        self.gateways: dict[str, GatewayProcess] = {}
        self.all: list[FleetProcess] = []
        self.troubles: list[Trouble] = []
        self.deaths, self.tenants = DeathsOfWorkers(self), TenantTexts(self.violate)
        self.snaps: list[tuple[float, str, str]] = []  # when the streams between two hosts broke
        self.lasting_cuts: set[tuple[str, str]] = set()  # ways that stay cut
        self._works: list[asyncio.Task[Any]] = []
        self._beginning = set[str]()  # names of processes that start now
        self.looked: Callable[[str], None] = lambda name: None  # called after each event of a process
        latency = world.latency_seconds
        self.network = NodeNetwork(
            Random(world.seed + 1), latency_seconds=(latency / 10, latency), noted=lambda *what: self._noted(*what)
        )
        self.fabric = NodeFabric(Random(world.seed + 2), delay_seconds=(world.write_seconds / 20, world.write_seconds))
        self.fabric.on_kill, self.fabric.touched = self._killed_by_decode, self._touched
        names = tuple(f"gateway{number}" for number in range(world.gateways))
        self.options = WorkerOptions(
            rules=rules,
            gateways=names,
            chunk_tokens=world.chunk_tokens,
            cache=world.cache,
            max_batch=world.max_batch,
            itl_target_ms=world.itl_target_ms,
            source=world.source,
            ahead=world.ahead,
            vocabulary=2 if world.source is DraftSource.LOOKUP else VOCABULARY,
            step_seconds=world.step_seconds,
            row_seconds=world.step_seconds / 10,
            prefill_tokens=world.prefill_tokens,
            decode_tokens=world.decode_tokens,
        )

    def violate(self, what: str) -> None:
        self.violations.append(f"{self.loop.world:.3f} s: {what}")
        self.failed.set()

    # ---- processes start

    async def start(self) -> None:
        for number in range(self.world.gateways):
            await self.start_gateway(f"gateway{number}")
        for tier, count in ((Tier.PREFILL, self.world.prefills), (Tier.DECODE, self.world.decodes)):
            for number in range(count):
                await self.start_worker(f"{tier.value}{number}")

    def _node(self, name: str) -> SimNode:
        drift = self.world.drift
        node = SimNode(name, rate=1 + self.random.uniform(-drift, drift), offset=self.random.uniform(0, 1e5))
        self.loop.nodes.append(node)
        return node

    async def start_gateway(self, name: str) -> None:
        process = GatewayProcess(name, self._node(name))

        async def begin() -> Gateway:
            gateway = Gateway(
                self.network.host(name),
                random=Random(self.random.getrandbits(64)),
                model="sim",
                local=self.world.local,
                limits=DoorConfig(reader_kib=self.world.reader_kib),
                rules=self.options.rules,
            )
            await gateway.listen(name)
            return gateway

        process.gateway = await process.node.spawn(begin())
        process.node.after = partial(self._gateway_ran, process)
        self.gateways[name] = process
        self.all.append(process)

    async def start_worker(self, name: str) -> None:
        tier, number = (Tier.PREFILL, int(name[7:])) if name.startswith("prefill") else (Tier.DECODE, int(name[6:]))
        world, node = self.world, self._node(name)
        numerics = world.classes[number % len(world.classes)]
        process = WorkerProcess(name, node, tier=tier, incarnation=self.random.getrandbits(63), numerics=numerics)
        pool = MemoryPool(self.options.shape(tier), world.pool_pages(tier))
        pages = WatchedPool(pool.pages, cache=world.cache, clear=pool.clear)
        pages.handed = partial(self.tenants.handed, name, pool)
        transport = NodeTransport(self.fabric, "one" if world.one_sided else "two", world.one_sided)
        process.made = await node.spawn(
            start_worker(
                self.options,
                self.network.host(name),
                transport,
                tier=tier,
                name=name,
                incarnation=process.incarnation,
                pool=pool,
                pages=pages,
                numerics=numerics,
                choose=lambda mine, theirs: (transport.name if mine.numerics == theirs.numerics else "", "simulated"),
                on_write=lambda page: self._computed(process, page),
            )
        )
        process.tasks = [node.spawn(process.worker.run()), node.spawn(process.worker.attachments.register())]
        node.after = partial(self._ran, process, pages)
        self.workers[name] = process
        self.all.append(process)

    def _gateway_ran(self, process: GatewayProcess) -> None:
        self.deaths.wait(process)
        self.looked(process.name)

    def _ran(self, process: WorkerProcess, pages: WatchedPool) -> None:
        """After each event of a worker: if its pool has changed, its pages must be in order."""
        self.deaths.look(process)
        process.note_busy(self.loop.world)
        if pages.changed:
            pages.changed = False
            for wrong in pages.faults(process.worker):
                self.violate(f"{process.name}: {wrong}")
        self.looked(process.name)

    # ---- processes end

    def process(self, name: str) -> FleetProcess:
        return self.workers[name] if name in self.workers else self.gateways[name]

    def kill(self, process: FleetProcess, *, died: bool = True) -> None:
        """Acts as kill -9. `died`: else the process has ended in good order."""
        if not process.alive:
            return
        process.alive = False
        if isinstance(process, WorkerProcess):
            if died and not process.replaced:
                self.deaths.add(process)
            self.coverage.counts(process.worker.counts())
            self.fabric.died(process.incarnation)
        process.node.dead = True
        if not process.replaced:
            self.network.drop(process.name, arrive=self.random.random() < 0.5)
        if isinstance(process, GatewayProcess):
            for tell in list(process.broken):
                self.network.later(tell)

    def replace(self, process: FleetProcess) -> None:
        """The process is stopped, and another one will get its address: for others it has died."""
        if isinstance(process, WorkerProcess):
            self.deaths.add(process)
        process.node.freeze()
        process.replaced = True
        self.network.drop(process.name, arrive=False)

    async def restart(self, name: str, seconds: float) -> None:
        """A supervisor starts the process again after a while, if nobody has it done before."""
        await asyncio.sleep(seconds)
        await self.begin(name)

    async def begin(self, name: str) -> None:
        """Start another process of this name, unless one is there or starts already: a host has one supervisor."""
        process = self.process(name)
        if name in self._beginning or (process.alive and not process.replaced):
            return
        self._beginning.add(name)
        try:
            await (self.start_gateway(name) if name in self.gateways else self.start_worker(name))
        finally:
            self._beginning.discard(name)

    def trouble(self, name: str, kind: str, seconds: float) -> None:
        self.troubles.append(Trouble(name, kind, self.loop.world, self.loop.world + seconds))

    def troubled(self, name: str, began: float) -> bool:
        """Whether the process may not have been able to serve at some time since then."""
        return any(t.name == name and t.ended + MEND_SECONDS >= began for t in self.troubles)

    def snap(self, one: str, other: str) -> None:
        self.snaps += [(self.loop.world, one, other), (self.loop.world, other, one)]
        self.deaths.broken(one, other)
        self.deaths.broken(other, one)
        self.network.snap(one, other)

    async def heal(self) -> None:
        """Every fault ends but those that last; whoever is dead starts again."""
        for way in list(self.network.cuts):
            if way not in self.lasting_cuts:
                self.network.mend(*way)
        for worker in self.workers.values():
            worker.runner.slowness = 1.0
            if worker.runner.hangs is not None:
                worker.runner.hangs.set()
                worker.runner.hangs = None
        for process in list(self.all):
            if process.alive and process.node.frozen and not getattr(process, "lasting", False):
                process.node.thaw()
        for name in (*self.gateways, *self.workers):
            await self.begin(name)

    # ---- what is watched

    def _noted(self, source: str, target: str, message: Message | None) -> None:
        self.coverage.message(self, source, target, message)

    def _killed_by_decode(self, incarnation: int) -> bool:
        """Decode may kill a writer that is silent itself while pages wait for its proof, and no other one."""
        process = next((p for p in self.all if isinstance(p, WorkerProcess) and p.incarnation == incarnation), None)
        if process is None or not self.world.may_kill:
            self.coverage.reach("kill from quarantine is not permitted")
            return False
        self.coverage.reach("kill from quarantine")
        if not self._silent(process):
            self.violate(f"{process.name} is killed from quarantine, though it was not silent")
        self.loop.call_soon(self._end, process, context=Context())
        return True

    def _silent(self, process: WorkerProcess) -> bool:
        """Whether others have not heard of this process for a lease."""
        since = self.loop.world - self.options.rules.lease_seconds
        kinds = ("freeze", "replace", "cut", "deafen", "snap")
        near = [t for t in self.troubles if t.name == process.name and t.kind in kinds and t.ended >= since]
        return process.node.frozen or process.replaced or bool(near)

    def _end(self, process: WorkerProcess) -> None:
        if process.alive:
            self.kill(process)
            if not process.replaced:
                self.trouble(process.name, "killed from quarantine", 0.2)
                self.later(self.restart(process.name, 0.2))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something outside all nodes."""
        self._works.append(asyncio.ensure_future(work))

    def _touched(self, write: Write, page: int) -> None:
        """A write, however late, may only change a page that lands, or is quarantined, for its own ticket."""
        process = next((w for w in self.workers.values() if w.pool is write.target.pool), None)
        if process is None or not process.alive:
            return
        owner = process.pages.owner(page)
        if not isinstance(owner, PageOwner) or owner.ticket.pack() != write.ticket:
            state, ticket = process.pages.state(page).value, Ticket.unpack(write.ticket)
            self.violate(f"{process.name}: a late write of {ticket.request} hits page {page}, {state} for {owner}")
        writer = next((p for p in self.all if isinstance(p, WorkerProcess) and p.incarnation == write.writer), None)
        if writer is not None and writer.replaced:
            self.coverage.reach("a replaced process writes")
        if process.pages.state(page).value == "quarantined":
            self.coverage.reach("a write reaches a quarantined page")

        self.tenants.written(process.name, write)

    def _computed(self, process: WorkerProcess, page: int) -> None:
        """No step may ever write a page that another request reads or can find."""
        if process.pages.shared(page):
            self.violate(f"{process.name} computes in page {page}, which is shared")

    def beyond_reach(self, owner: Hashable) -> bool:
        """The writer of these pages stays frozen, or cut off, and may not be killed."""
        if self.world.may_kill or not isinstance(owner, PageOwner):
            return False
        writer = next(p for p in self.all if isinstance(p, WorkerProcess) and p.incarnation == owner.writer)
        return writer.alive and (writer.lasting or any(writer.name in way for way in self.lasting_cuts))

    def request_of(self, spec: ChoiceRequest, name: str) -> int | None:
        """The number by which a gateway knows a client's request now."""
        running = self.gateways[name].core.sequencer.requests.values()
        return next((request.id for request in running if request.choice is spec), None)
