"""The two sides that bench/gateway.py compares: the gateway over a worker that emits at will, and a bare server.

Both get the same requests from the same clients, and one token for each of them per `step`."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from bench.child import child
from bench.gateway_worker import EmittingWorker
from cli.connecting.health import speaks_http
from cli.local_mesh.ports import free_address


class Target(Protocol):
    port: int

    def step(self) -> None:
        """One more token for every client."""


@dataclass(slots=True)
class GatewayTarget:
    port: int
    worker: EmittingWorker
    process: Process

    def step(self) -> None:
        self.worker.step()

    async def facts(self) -> dict[str, Any]:
        """Longest block of its loop since the last question, and its memory."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found

    async def idle(self, seconds: float = 30.0) -> int:
        """Wait until no request runs; returns how many do all the same."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.worker.open and loop.time() < end:
            await asyncio.sleep(0.02)
        return len(self.worker.open)


@dataclass(slots=True)
class BareTarget:
    port: int
    process: Process

    def step(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def gateway_target(**settings: str) -> AsyncIterator[GatewayTarget]:
    grpc, http, register = free_address(), free_address(), free_address()
    pairs = {f"gateway.{key}": value for key, value in settings.items()}
    pairs |= {"gateway.grpc_address": grpc, "gateway.http_address": http, "gateway.worker_address": register}
    arguments = [f"{key}={value}" for key, value in pairs.items()]
    worker = EmittingWorker()
    async with _module("bench.gateway_served", *arguments) as process:
        try:
            while not await speaks_http(http):
                if process.returncode is not None:
                    raise RuntimeError("the gateway did not start; its log stands above")
                await asyncio.sleep(0.05)
            await worker.start(register)
            yield GatewayTarget(int(http.rpartition(":")[2]), worker, process)
        finally:
            await worker.close()


@asynccontextmanager
async def bare_target(event_bytes: int) -> AsyncIterator[BareTarget]:
    async with _module("bench.gateway_bare", str(event_bytes)) as process:
        assert process.stdout is not None
        yield BareTarget(int(await process.stdout.readline()), process)


def _module(name: str, *arguments: str) -> AbstractAsyncContextManager[Process]:
    return child(sys.executable, "-m", name, *arguments, stdin=PIPE, stdout=PIPE)
