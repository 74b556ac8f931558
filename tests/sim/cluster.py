"""A whole mesh in one process under virtual time: one gateway, prefill and decode workers, memory transports.

Everything but the loop, the network, the transports and the runner is the product's own code. A process can be
killed, restarted, frozen and cut off; what clients saw is compared with the reference text, and pages are counted."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from random import Random
from typing import Any, Self

from decode_svc.worker import DecodeWorker
from engine.pool.pages import PagePool
from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from gateway.tracing.slo_limits import Limits
from gateway.tracing.traces import RecentTraces
from kvtransfer.memory import Fabric, MemoryPool, MemoryTransport
from mesh.config.door_config import DoorConfig
from mesh.messages.jobs import Sampling, Ticket, Tier
from mesh.messages.kv_messages import KvHello
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.watchdog import report_long_steps
from mesh.telemetry.spans import Silent, Telemetry
from prefill_svc.worker import PrefillWorker
from tests.sim.clients import Bans, SimClient
from tests.sim.page_checks import PageChecks
from tests.sim.processes import SimProcess
from tests.sim.workers import PAGE_TOKENS, WorkerOptions, start_worker


class Cluster:
    def __init__(
        self,
        seed: int,
        *,
        one_sided: bool = True,
        pages: int = 64,
        prefill_pages: int | None = None,
        local: Local = Local.AUTO,
        may_kill: bool = True,
        numerics: dict[str, str] | None = None,
        models: dict[str, str] | None = None,  # what workers serve, by name; others serve "sim"
        served: tuple[str, ...] = ("sim",),  # by the gateway
        gateway_random: Random | None = None,
        patience_seconds: float = 30.0,
        page_tokens: tuple[int, int] = (PAGE_TOKENS, PAGE_TOKENS),  # tokens in a page at prefill, and in one at decode
        telemetry: Telemetry | None = None,  # where traces go; None: nothing is recorded
        limits: Limits | None = None,
        bans: Bans = lambda sampling, text: (),  # those of the reference
        reader_kib: int = 256,
        queue_seconds: float = 0.0,  # 0: no request is refused for its wait
        **workers: Any,  # fields of WorkerOptions
    ) -> None:
        self.random = Random(seed)
        self.options = WorkerOptions(prefill_tokens=page_tokens[0], decode_tokens=page_tokens[1], **workers)
        self.one_sided, self.pages, self.local, self.may_kill = one_sided, pages, local, may_kill
        self.prefill_pages, self.patience_seconds = prefill_pages, patience_seconds
        self.numerics, self.models, self.served = numerics or {}, models or {}, served
        door = DoorConfig(reader_kib=reader_kib, queue_seconds=queue_seconds)
        self.bans, self.limits, self.door = bans, limits or Limits(), door
        self.refuse: Callable[[str, str], str] = lambda decode, prefill: ""  # why their session does not begin
        self.network = MemoryNetwork(Random(seed + 1))
        self.fabric = Fabric(Random(seed + 2))
        self.fabric.on_kill = self._kill_writer
        self.telemetry = telemetry or Silent()
        self.processes: dict[str, SimProcess] = {}
        self._checks = PageChecks(self.processes)
        self.fabric.touched = self._checks.touched
        self.clients: list[SimClient] = []
        self.gateway = self._gateway(gateway_random or Random(seed + 3))

    def _gateway(self, random: Random) -> Gateway:
        return Gateway(
            self.network.host("gateway"),
            random=random,
            traces=RecentTraces(self.telemetry, random=Random(7), limits=self.limits),
            model=ServedModels(ServedModel((name,)) for name in self.served),
            local=self.local,
            patience_seconds=self.patience_seconds,
            limits=self.door,
            rules=self.options.rules,
        )

    async def start(self, prefills: int = 2, decodes: int = 2) -> Self:
        await self.gateway.listen("gateway")
        for number in range(prefills):
            await self.add(Tier.PREFILL, f"prefill{number}")
        for number in range(decodes):
            await self.add(Tier.DECODE, f"decode{number}")
        await self.until(lambda: len(self.gateway.workers) == prefills + decodes)
        return self

    async def restart_gateway(self, random: Random) -> None:
        self.network.unlisten("gateway")
        for process in self.processes.values():
            self.network.snap("gateway", process.name)
        await self.gateway.aclose()
        self.gateway = self._gateway(random)
        await self.gateway.listen("gateway")

    async def add(self, tier: Tier, name: str, pages: int | None = None) -> SimProcess:
        incarnation = self.random.getrandbits(63)
        count = pages or (self.prefill_pages if tier is Tier.PREFILL else None) or self.pages
        transport, memory = self._transport(), MemoryPool(self.options.shape(tier), count)
        pool = PagePool(count, cache=self.options.cache, clear=memory.clear, bands=self.options.bands)
        made = await start_worker(
            self.options,
            self.network.host(name),
            transport,
            tier=tier,
            name=name,
            incarnation=incarnation,
            pool=memory,
            pages=pool,
            numerics=self.numerics.get(name, "class-a"),
            model=self.models.get(name, "sim"),
            choose=lambda mine, theirs: self._choose(transport.name, name, theirs),
            on_write=lambda page: self._checks.computed(name, pool, page),
        )
        worker = made.worker
        worker.plans = []
        process = SimProcess(name, tier, worker, made.pool, incarnation, made.runner)
        beat = self.options.rules.heartbeat_seconds
        reports = report_long_steps(made.steps, worker.attachments, heartbeat_seconds=beat)
        parts = worker.run(), worker.attachments.register(), reports
        process.tasks = [asyncio.ensure_future(part) for part in parts]
        self.processes[name] = process
        return process

    def _choose(self, transport: str, decode: str, theirs: KvHello) -> tuple[str, str]:
        prefill = next((p.name for p in self.processes.values() if p.incarnation == theirs.incarnation), "")
        why = self.refuse(decode, prefill)
        return ("", why) if why else (transport, "simulated")

    def prefill(self, number: int = 0) -> PrefillWorker:
        worker = self.processes[f"prefill{number}"].worker
        assert isinstance(worker, PrefillWorker)
        return worker

    def decode(self, number: int = 0) -> DecodeWorker:
        worker = self.processes[f"decode{number}"].worker
        assert isinstance(worker, DecodeWorker)
        return worker

    def _transport(self) -> MemoryTransport:
        return MemoryTransport(self.fabric, "one" if self.one_sided else "two", self.one_sided)

    # ---- what happens to processes

    async def kill(self, name: str, *, zombie: bool = False) -> None:
        """Acts as kill -9: the process runs no more and its streams end. A zombie is only stopped: its writes go on."""
        process = self.processes[name]
        if process.alive:
            process.alive = False
            if not zombie:
                self.fabric.died(process.incarnation)
            self._thaw(process)
            self.network.unlisten(name)
            for task in process.tasks:
                task.cancel()
            for stream in list(self.network.streams):
                if name in (stream.here, stream.peer):
                    stream.snap()
            if isinstance(process.worker, PrefillWorker):
                await process.worker.links.aclose()
            else:
                process.worker.landings.quarantine.close()

    async def restart(self, name: str) -> SimProcess:
        await self.kill(name)
        return await self.add(self.processes[name].tier, name)

    def freeze(self, name: str) -> None:
        """SIGSTOP, as others see it: nothing comes from it and nothing reaches it; writes under way stop half-way."""
        process = self.processes[name]
        if process.thaw is None and process.alive:
            messages = self.network.hold(lambda source, target, _: name in (source, target))
            writes = self.fabric.hold(lambda write: write.writer == process.incarnation)

            def thaw() -> None:
                process.thaw = None
                messages()
                writes()

            process.thaw = thaw

    def _thaw(self, process: SimProcess) -> None:
        if process.thaw is not None:
            process.thaw()

    def thaw(self, name: str) -> None:
        self._thaw(self.processes[name])

    def _kill_writer(self, incarnation: int) -> bool:
        process = next((p for p in self.processes.values() if p.incarnation == incarnation), None)
        if process is None or not self.may_kill:
            return False
        process.tasks.append(asyncio.ensure_future(self.kill(process.name)))
        return True

    # ---- clients

    def ask(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling = Sampling(max_tokens=6),
        deadline_seconds: float | None = None,
        *,
        emitted: tuple[int, ...] = (),
        allow_class_change: bool = False,
        numerics: str = "",
        model: str = "sim",
        salt: bytes = b"",
        reads: Callable[[], Awaitable[None]] | None = None,  # the client waits for this before it takes a token
    ) -> SimClient:
        name = f"r{len(self.clients)}"
        trace = self.gateway.traces.begin("sim", "", {}, operation="chat")
        trace.request_id, trace.model = name, model
        spec = ChoiceRequest(
            name, model, prompt, emitted, sampling, deadline_seconds, allow_class_change, numerics, trace, salt
        )
        client = SimClient(spec, self.gateway.submit(spec), reads=reads)
        client.task = asyncio.ensure_future(client.listen())
        self.clients.append(client)
        return client

    def ticket(self, client: SimClient) -> Ticket:
        """The ticket of the request's current attempt."""
        found = next(r.ticket for r in self.gateway.sequencer.requests.values() if r.choice is client.spec)
        assert found is not None, f"{client.spec.request_id} waits for a worker"
        return found

    async def until(self, what: Callable[[], bool], seconds: float = 60.0) -> bool:
        """Let time pass until something holds; False when it did not in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not what():
            if loop.time() > end:
                return False
            await asyncio.sleep(0.001)
        return True

    async def finish(self, seconds: float = 120.0) -> list[str]:
        """Wait for every client, then until every page is back; returns what is wrong."""
        await self.until(lambda: all(client.ended for client in self.clients), seconds)
        await self.until(lambda: not self._checks.out(), 30.0)
        return self.violations()

    def violations(self) -> list[str]:
        given = self.options.vocabulary, self.bans, self.options.window, self.options.full_layers
        clients = [each.violations(*given) for each in self.clients]
        return [*self._checks.strays, *chain(*clients), *self._checks.at_the_end()]
