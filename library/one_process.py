"""A mesh inside this process: a gateway and one decode worker that computes prompts itself, joined in memory.

Nothing listens at a port. Clients connect through pairs of sockets, to the connections that every gateway has."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import SystemRandom

from cli.connecting.http_client import Connect, Streams
from decode_svc.main import open_worker
from gateway.attaching.service import Gateway
from gateway.dialects.api import HttpApi
from gateway.http.connection import ClientConnection
from gateway.http.open_connections import OpenConnections
from gateway.main import load_served, make_gateway
from gateway.prompts.by_model import AssetsByName
from gateway.tracing.traces import RecentTraces
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from mesh.config.worker_config import DecodeConfig
from mesh.network.interface import Network
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.serving import run_together
from mesh.telemetry.spans import Silent

UNWIND_SECONDS = 10.0  # for which requests that are cancelled may take to end
HERE = "127.0.0.1:50052"  # the gateway's name in the network of this process


def for_itself(config: GatewayConfig) -> GatewayConfig:
    """The settings of a gateway with one client, which has all places for itself and looks at no page."""
    return replace(config, local="always", queue_seconds=0.0, max_waiting=1_000_000, metrics=False, worker_address=HERE)


@asynccontextmanager
async def one_process(gateway: GatewayConfig, decode: DecodeConfig) -> AsyncIterator[Connect]:
    """Yields what opens a connection to the model, once it is loaded."""
    config, random = for_itself(gateway), SystemRandom()
    worker_config = replace(decode, gateways=(HERE,), transports=("shm",), metrics=False)
    network = MemoryNetwork(random, latency_seconds=(0.0, 0.0), logged=False)
    async with open_worker(worker_config, ends_process=False, network=network.host("decode")) as worker:
        parts = worker.run(), worker.attachments.register(), worker.measure()
        running = asyncio.ensure_future(run_together(*parts))
        try:
            async with _gateway(config, network.host("gateway"), running, random=random) as api:
                connections = OpenConnections(config)
                try:
                    yield _connects(api, connections)
                finally:
                    await _end_connections(connections)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def _gateway(
    config: GatewayConfig, network: Network, worker: "asyncio.Future[None]", *, random: SystemRandom
) -> AsyncIterator[HttpApi]:
    """A gateway that has the worker, which runs already."""
    loaded = [(each, await asyncio.to_thread(load_served, config, each)) for each in config.served]
    traces = RecentTraces(Silent(), random=random)
    core = make_gateway(config, network, loaded, random=random, traces=traces)
    registry = await core.listen(HERE)
    models = AssetsByName({name: one for each, one in loaded for name in each.names})
    models.resolve_by(core.root)
    api = HttpApi(core, models, random=random, clock=time.time, traces=traces, loader=core.loading)
    try:
        await _attached(core, worker)
        yield api
    finally:
        await api.aclose()
        await core.aclose()
        await registry.close()


async def _attached(gateway: Gateway, running: "asyncio.Future[None]") -> None:
    """Wait until the gateway sends requests to the worker."""
    while not gateway.healthy():
        if refused := gateway.refused_workers():
            raise ConfigError(f"model: the gateway refuses the worker: {refused}")
        changed = asyncio.ensure_future(gateway.changed.after(gateway.changed.count))
        await asyncio.wait((changed, running), return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        if running.done():
            running.result()


async def _end_connections(connections: OpenConnections) -> None:
    """End them all, and wait until nothing serves their requests any more."""
    for connection in list(connections.every):
        connection.drop()
    if connections.tasks:
        await asyncio.wait(list(connections.tasks), timeout=UNWIND_SECONDS)


def _connects(api: HttpApi, open_connections: OpenConnections) -> Connect:
    async def connect() -> Streams:
        here, there = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: ClientConnection(api.app, open_connections), there)
        return await asyncio.open_connection(sock=here)

    return connect
