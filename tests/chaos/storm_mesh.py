"""A mesh of real processes for faults of every role: prefill and decode workers, and two gateways.

Gateways and prefill workers reach each worker through a proxy of its own (tests/harness/proxy.py), so that a test can
disturb its network as well as its process. Workers with a network namespace of their own have no proxy: the kernel
disturbs their network (tests/chaos/namespaces.py), and their pages travel over TCP, because shared memory knows no
network. A process that ended is started again, as a supervisor does."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from tests.chaos.namespaces import NamespaceSet
from tests.harness.orders import Orders
from tests.harness.process import START_SECONDS, ServiceProcess
from tests.harness.proxy import DelayingProxy
from tests.harness.recording import logged

RESTART_SECONDS = 0.5


@dataclass
class StormMesh:
    addresses: list[str]  # addresses of the gateways' gRPC API
    http: list[str]
    gateways: list[ServiceProcess] = field(default_factory=list)
    prefills: list[ServiceProcess] = field(default_factory=list)
    decodes: list[ServiceProcess] = field(default_factory=list)
    proxies: dict[str, DelayingProxy] = field(default_factory=dict)  # by the worker's name, of those without namespace
    restarts: int = 0

    @property
    def workers(self) -> list[ServiceProcess]:
        return [*self.prefills, *self.decodes]

    @property
    def processes(self) -> list[ServiceProcess]:
        return [*self.gateways, *self.workers]

    async def complete(self, seconds: float = START_SECONDS) -> None:
        """Wait until both gateways have attached every worker."""
        wanted, seen = (len(self.prefills), len(self.decodes)), list[object]()
        try:
            async with asyncio.timeout(seconds):
                for http in self.http:
                    while True:
                        found = await health(http) or {}
                        if (found.get("prefill"), found.get("decode")) == wanted:
                            break
                        seen = [http, found]
                        await asyncio.sleep(0.05)
        except TimeoutError:
            raise RuntimeError(f"the mesh is not complete: {seen}\n{self.last_lines()}") from None

    async def keep_running(self) -> None:
        """Start each process again that ended; runs until it is cancelled."""

        async def keep(process: ServiceProcess) -> None:
            while True:
                await process.ended(float("inf"))
                await asyncio.sleep(RESTART_SECONDS)
                self.restarts += 1
                try:
                    await process.start()
                except RuntimeError:
                    if process.status != -signal.SIGKILL:  # else it was struck again while it started
                        raise

        async with asyncio.TaskGroup() as keeping:
            for process in self.processes:
                keeping.create_task(keep(process))

    def last_lines(self) -> str:
        return "\n".join(f"[{each.name}] {line}" for each in self.processes for line in list(each.lines)[-12:])


@asynccontextmanager
async def storm_mesh(
    *,
    prefills: int = 2,
    decodes: int = 3,
    settings: Mapping[str, str],
    drains: bool = False,
    network: NamespaceSet | None = None,  # namespaces of some workers, by name; None: no worker has one
) -> AsyncIterator[StormMesh]:
    """`drains`: SIGTERM makes a worker drain, as the product does; else it ends at once."""
    host, spaces = (network.host, network.spaces) if network is not None else ("127.0.0.1", {})
    ports = [{"http": free_address(), "grpc": free_address(), "worker": on(host)} for _ in range(2)]
    mesh = StormMesh([each["grpc"] for each in ports], [each["http"] for each in ports])
    folder = await asyncio.to_thread(ensure_random, default_cache_folder())
    common = logged(settings) | {"model": str(folder), "served_name": "random"}
    common |= {"worker.gateways": ",".join(each["worker"] for each in ports)}
    if network is not None and network.token is not None:
        common |= {"mesh_token_file": str(network.token), "worker.transport_host": host}

    def service(tier: str, name: str, own: Mapping[str, str], within: Sequence[str] = ()) -> ServiceProcess:
        orders = Orders(tier=tier, settings={**common, **own, f"{tier}.name": name}, parent=os.getpid(), drains=drains)
        return ServiceProcess(name, orders, within=within)

    def worker(tier: str, name: str) -> ServiceProcess:
        if (space := spaces.get(name)) is not None:
            own = {"address": on(space.address), "transport_host": space.address, "transports": "tcp"}
            return service(tier, name, {f"{tier}.{key}": value for key, value in own.items()}, space.command)
        address, public = on(host), on(host)
        mesh.proxies[name] = DelayingProxy(public, address)
        return service(tier, name, {f"{tier}.address": address, f"{tier}.advertise_port": public.rpartition(":")[2]})

    for number, each in enumerate(ports):
        own = {f"gateway.{name}_address": address for name, address in each.items()}
        mesh.gateways.append(service("gateway", f"gateway-{number}", own))
    mesh.prefills += [worker("prefill", f"prefill-{number}") for number in range(prefills)]
    mesh.decodes += [worker("decode", f"decode-{number}") for number in range(decodes)]
    try:
        await asyncio.gather(*(proxy.start() for proxy in mesh.proxies.values()))
        for process in mesh.processes:  # one after the other: each start takes a core for a while
            await process.start()
        await mesh.complete()
        yield mesh
    finally:
        await asyncio.gather(*(process.stop() for process in mesh.processes))
        await asyncio.gather(*(proxy.stop() for proxy in mesh.proxies.values()))


def on(host: str) -> str:
    """A free address of this host. Its port is free on every address of this machine, and in new namespaces too."""
    return f"{host}:{free_address().rpartition(':')[2]}"
