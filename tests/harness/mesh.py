"""A mesh of real processes for fault tests: a gateway and workers on free ports, complete before the test begins.

Requests go through the gateway's public gRPC API, as every client's do (`tests/harness/client.py`)."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from engine.builtin import ensure_random
from mesh.config.common_config import default_cache_folder
from tests.harness.orders import Orders
from tests.harness.process import START_SECONDS, OnEvent, ServiceProcess
from tests.harness.recording import logged


class ProcessMesh:
    def __init__(
        self, gateway: ServiceProcess, http: str, prefills: list[ServiceProcess], decodes: list[ServiceProcess]
    ) -> None:
        self.gateway, self.http, self.prefills, self.decodes = gateway, http, prefills, decodes

    @property
    def address(self) -> str:
        """Address of the public gRPC API."""
        return self.gateway.address

    @property
    def workers(self) -> list[ServiceProcess]:
        return [*self.prefills, *self.decodes]

    async def attached(self, prefills: int, decodes: int, seconds: float = START_SECONDS) -> None:
        """Wait until the gateway has attached exactly this many workers."""
        seen = None
        try:
            async with asyncio.timeout(seconds):
                while (seen := await health(self.http)) is None or (
                    (seen.get("prefill"), seen.get("decode")) != (prefills, decodes)
                ):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeError(
                f"the gateway sees {seen}, not {prefills} prefill and {decodes} decode workers"
            ) from None

    def last_lines(self) -> str:
        """The last log lines of every process, for the message of a failed test."""
        return "\n".join(f"[{p.name}] {line}" for p in (self.gateway, *self.workers) for line in list(p.lines)[-12:])


@asynccontextmanager
async def process_mesh(
    *,
    prefills: int = 2,
    decodes: int = 1,
    settings: Mapping[str, str] | None = None,
    rules: Mapping[str, float | int] | None = None,
    mutants: Sequence[str] = (),
    bytes_per_second: float | None = None,
    span_pause_seconds: float = 0.0,
    resume: bool = True,
    notices: bool = True,
    delays: bool = False,
    damage: float = 0.0,
    on_event: OnEvent | None = None,
    start_decodes: bool = True,
) -> AsyncIterator[ProcessMesh]:
    """A running mesh, whose processes end on the way out. With `start_decodes` off the test starts the decode
    workers."""
    given = logged(settings or {}, changed=bool(mutants) or not resume or not notices)
    grpc, http, workers = free_address(), free_address(), free_address()
    if "model" not in given:
        folder = await asyncio.to_thread(ensure_random, default_cache_folder())
        given |= {"model": str(folder), "served_name": "random"}
    common = given | {"gateway.grpc_address": grpc, "gateway.http_address": http}
    common |= {"gateway.worker_address": workers, "worker.gateways": workers}

    def make(tier: str, name: str) -> ServiceProcess:
        orders = Orders(
            tier=tier,
            settings=common | {f"{tier}.name": name},
            parent=os.getpid(),
            rules=rules or {},
            mutants=tuple(mutants),
            bytes_per_second=bytes_per_second,
            span_pause_seconds=span_pause_seconds,
            resume=resume,
            notices=notices,
            delays=delays,
            damage=damage,
        )
        return ServiceProcess(name, orders, on_event)

    mesh = ProcessMesh(
        make("gateway", "gateway"),
        http,
        [make("prefill", f"prefill-{number}") for number in range(prefills)],
        [make("decode", f"decode-{number}") for number in range(decodes)],
    )
    first = [*mesh.prefills, *(mesh.decodes if start_decodes else ())]
    try:
        await mesh.gateway.start()
        await asyncio.gather(*(worker.start() for worker in first))
        if start_decodes:
            await mesh.attached(prefills, decodes)
        yield mesh
    finally:
        await asyncio.gather(*(process.stop() for process in (mesh.gateway, *mesh.workers)))
