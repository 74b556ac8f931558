"""Keys files of tests, and front doors behind them. Keys of tests say whose they are."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from gateway.grpc import api as grpc_api
from gateway.grpc.guard import GrpcGuard
from gateway.grpc.server import serve_grpc
from gateway.prompts.assets import Assets
from gateway.tenants.admission import UNKNOWN
from gateway.tenants.keys import KeyFile
from gateway.tenants.rows import hash_of
from gateway.tenants.tenants import Tenants
from gateway.tracing.traces import RecentTraces
from mesh.config.services import GatewayConfig
from mesh.network.grpc_network import GrpcListening
from mesh.telemetry.spans import KeptHere
from tests.harness.served_api import served_api
from tests.harness.waiting import within


def key_of(name: str) -> str:
    return f"baton-the-key-of-{name}"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key_of(name)}"}


def write_keys(file: Path, **limits: str) -> Path:
    """A file with a key for each name, and the limits given for it."""
    rows = [f"{name} {hash_of(key_of(name))} {text}".rstrip() for name, text in limits.items()]
    file.write_text("\n".join(["# a test's keys", *rows]) + "\n")
    return file


@dataclass
class SetClock:
    """A clock that stands until the test sets it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class GuardedDoor:
    """The HTTP API over a core, behind a keys file."""

    file: Path
    keys: KeyFile
    tenants: Tenants
    clock: SetClock
    traces: RecentTraces
    http: httpx2.AsyncClient
    address: str

    async def reload(self, **limits: str) -> None:
        write_keys(self.file, **limits)
        await self.keys.look()
        await self.keys.look()

    async def complete(self, name: str, **fields: Any) -> httpx2.Response:
        body = {"prompt": "x", "max_tokens": 4} | fields
        return await self.http.post("/v1/completions", json=body, headers=bearer(name))


@asynccontextmanager
async def guarded_http(core: Any, assets: Assets, file: Path) -> AsyncIterator[GuardedDoor]:
    keys, clock = KeyFile(file), SetClock()
    tenants, traces = Tenants(keys, clock), RecentTraces(KeptHere(), random=random.Random(5), admission=UNKNOWN)
    async with served_api(core, assets, traces=traces, tenants=tenants) as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=None) as http:
            yield GuardedDoor(file, keys, tenants, clock, traces, http, address)


@asynccontextmanager
async def guarded_grpc(core: Any, assets: Assets, tenants: Tenants, **settings: Any) -> AsyncIterator[GrpcListening]:
    drawn = random.Random(3)
    traces = RecentTraces(KeptHere(), random=drawn, admission=UNKNOWN)
    add = grpc_api.services(core, assets, random=drawn, traces=traces)
    guard = GrpcGuard(tenants, count_error=core.count_error, random=drawn)
    config = GatewayConfig(**({"grpc_address": "127.0.0.1:0"} | settings))
    server = await serve_grpc(config, add, guards=[guard])
    try:
        yield server
    finally:
        await server.close()


async def begun(core: Any, count: int) -> None:
    """Wait until so many choices have reached the core."""
    await within(20, lambda: len(core.requests) == count)
