"""All processes of a run: gateways and workers on nodes of their own, which are killed, stopped and replaced.

A process that has died is started again by a supervisor, as `baton up` does it. What an operator or a kernel would do
is done here, from outside all nodes."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from decode_svc.speculation.speculation import DraftSource
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from kvtransfer.memory import MemoryPool
from mesh.config.door_config import DoorConfig
from mesh.messages.jobs import Tier
from mesh.messages.message import Message
from mesh.rules import Rules
from mesh.sessions.watchdog import report_long_steps
from tests.sim.message_logs import SimLogs, logged_host
from tests.sim.model import VOCABULARY
from tests.sim.seeds.copies import ProcessCopies
from tests.sim.seeds.coverage import Coverage
from tests.sim.seeds.deaths import DeathsOfWorkers
from tests.sim.seeds.departures import Departures
from tests.sim.seeds.guards import PageGuard
from tests.sim.seeds.nets import Nets
from tests.sim.seeds.nodes import NodeLoop, SimNode
from tests.sim.seeds.orders import GatewayOrders
from tests.sim.seeds.pools import WatchedPool
from tests.sim.seeds.ports import PortOfAll
from tests.sim.seeds.processes import FleetProcess, GatewayProcess, Trouble, WorkerProcess
from tests.sim.seeds.reach import Reach
from tests.sim.seeds.story import SimWorld
from tests.sim.seeds.supervision import SimSupervisor
from tests.sim.seeds.wires import NodeFabric, NodeNetwork, NodeTransport
from tests.sim.tenants import TenantTexts
from tests.sim.workers import WorkerOptions, start_worker

MEND_SECONDS = 20.0  # so long after a fault the mesh may still suffer from it


class Fleet:
    def __init__(
        self, world: SimWorld, loop: NodeLoop, rules: Rules, coverage: Coverage, logs: SimLogs | None = None
    ) -> None:
        self.world, self.loop, self.coverage, self.logs = world, loop, coverage, logs
        self.random = Random(world.seed)
        self.violations: list[str] = []
        self.failed = asyncio.Event()  # set at the first violation
        self.workers: dict[str, WorkerProcess] = {}  # by name: those that have the address now
        self.gateways: dict[str, GatewayProcess] = {}
        self.all: list[FleetProcess] = []
        self.troubles: list[Trouble] = []
        self.deaths, self.tenants = DeathsOfWorkers(self), TenantTexts(self.violate)
        self.orders, self.copies, self.reach = GatewayOrders(self), ProcessCopies(self), Reach(self)
        self.supervisor, self.port, self.departures = SimSupervisor(self), PortOfAll(self), Departures(self)
        self.guard, self.nets = PageGuard(self), Nets(self)
        self.snaps: list[tuple[float, str, str]] = []  # when the streams between two hosts broke
        self.lasting_cuts: set[tuple[str, str]] = set()  # ways that stay cut
        self.works: list[asyncio.Task[Any]] = []
        self._beginning = set[str]()  # names of processes that start now
        self.looked: Callable[[str], None] = lambda name: None  # called after each event of a process
        latency = world.latency_seconds
        self.network = NodeNetwork(
            Random(world.seed + 1), latency_seconds=(latency / 10, latency), noted=lambda *what: self._noted(*what)
        )
        self.network.rewrite = self._sent
        self.fabric = NodeFabric(Random(world.seed + 2), delay_seconds=(world.write_seconds / 20, world.write_seconds))
        self.fabric.on_kill, self.fabric.touched = self.guard.killed_by_decode, self.guard.touched
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
            window=0 if world.source is DraftSource.DRAFT else world.window,  # a draft reads texts late: pages stay
            full_layers=world.full_layers,
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
                logged_host(self.logs, self.network.host(name), "gateway", name),
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
        self.nets.watch(process)
        self.gateways[name] = process
        self.port.began(process)
        self._began(process)

    async def start_worker(self, name: str) -> None:
        tier, number = (Tier.PREFILL, int(name[7:])) if name.startswith("prefill") else (Tier.DECODE, int(name[6:]))
        world, node = self.world, self._node(name)
        numerics = world.classes[number % len(world.classes)]
        process = WorkerProcess(name, node, tier=tier, incarnation=self.random.getrandbits(63), numerics=numerics)
        bands = self.options.bands
        pool = MemoryPool(self.options.shape(tier), bands.count * world.pool_pages(tier))
        pages = WatchedPool(pool.pages, cache=world.cache, clear=pool.clear, bands=bands)
        pages.handed = partial(self.tenants.handed, name, pool)
        transport = NodeTransport(self.fabric, "one" if world.one_sided else "two", world.one_sided)
        process.made = await node.spawn(
            start_worker(
                self.options,
                logged_host(self.logs, self.network.host(name), tier.value, name, process.incarnation),
                transport,
                tier=tier,
                name=name,
                incarnation=process.incarnation,
                pool=pool,
                pages=pages,
                numerics=numerics,
                choose=lambda mine, theirs: (transport.name if mine.numerics == theirs.numerics else "", "simulated"),
                on_write=lambda page: self.guard.computed(process, page),
            )
        )
        self.orders.watch(process)
        worker, beat = process.worker, self.options.rules.heartbeat_seconds
        reports = report_long_steps(process.made.steps, worker.attachments, heartbeat_seconds=beat)
        process.tasks = [node.spawn(part) for part in (worker.run(), worker.attachments.register(), reports)]
        node.after = partial(self._ran, process, pages)
        self.workers[name] = process
        self._began(process)

    def _began(self, process: FleetProcess) -> None:
        process.began = self.loop.world
        self.all.append(process)
        self.supervisor.began(process)

    def _gateway_ran(self, process: GatewayProcess) -> None:
        self.deaths.wait(process)
        self.copies.look(process)
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
            self.coverage.relayed(process.core.sequencer.relay)
            for call in list(process.calls):
                self.network.later(call.break_off)

    def replace(self, process: FleetProcess) -> None:
        """The process is stopped, and another one will get its address: for others it has died."""
        if isinstance(process, WorkerProcess):
            self.deaths.add(process)
        process.freeze(self.loop.world)
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
            if worker.runner.hangs is not None and not worker.hangs_for_ever:
                worker.runner.hangs.set()
                worker.runner.hangs = None
        for process in list(self.all):
            if process.alive and not process.stands_still:
                process.thaw(self.loop.world)
        for name in (*self.gateways, *self.workers):
            await self.begin(name)

    # ---- what is watched

    def _noted(self, source: str, target: str, message: Message | None) -> None:
        self.coverage.message(self, source, target, message)
        self.orders.note(target, message)
        self.departures.note(source, target, message)
        self.nets.note(source, target, message)

    def _sent(self, source: str, message: Message) -> Message:
        """A gateway or a worker sends a message; returns the one that travels in its place."""
        self.departures.ordered(source, message)
        return self.orders.rewrite(source, message)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something outside all nodes."""
        self.works.append(asyncio.ensure_future(work))

    def ways(self, fits: Callable[[WorkerProcess], bool]) -> list[list[WorkerProcess]]:
        """The decode workers that fit, each with the prefill worker that it needs."""
        workers = self.workers.values()
        decodes = [each for each in workers if each.tier is Tier.DECODE and fits(each)]
        if self.world.local is not Local.NEVER:
            return [[each] for each in decodes]
        prefills = [each for each in workers if each.tier is Tier.PREFILL]
        return [[d, p] for d in decodes for p in prefills if p.numerics == d.numerics]

    def request_of(self, spec: ChoiceRequest, name: str) -> int | None:
        """The number by which a gateway knows a client's request now."""
        running = self.gateways[name].core.sequencer.requests.values()
        return next((request.id for request in running if request.choice is spec), None)
