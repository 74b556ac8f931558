"""A running mesh for the length of an `async with`: it starts complete, and all its processes end on the way out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from cli.connecting.health import health
from cli.errors import MeshFailed
from cli.local_mesh.ports import dialable
from cli.local_mesh.supervisor import OnLine, Service, Supervisor
from mesh.config.services import MeshConfig

LOOK_SECONDS = 0.05  # between two looks at the gateway, until the mesh is complete


@asynccontextmanager
async def running_mesh(
    mesh: MeshConfig, services: Sequence[Service], on_line: OnLine, timeout_seconds: float | None = None
) -> AsyncIterator[Supervisor]:
    """MeshFailed when the mesh does not become complete. Without a time-out the start may take as long as it needs."""
    supervisor = Supervisor(services, on_line, gateways=mesh.gateway.processes)
    supervisor.start()
    try:
        await supervisor.all_ready(timeout_seconds)
        try:
            await complete(mesh, timeout_seconds)
        except MeshFailed as error:
            raise MeshFailed("\n".join([str(error), *supervisor.not_ready()])) from None
        yield supervisor
    finally:
        await supervisor.stop()


async def complete(mesh: MeshConfig, timeout_seconds: float | None) -> None:
    """Wait until every process of the gateway has attached every worker; MeshFailed after `timeout_seconds`."""
    address, processes = dialable(mesh.gateway.http_address), mesh.gateway.processes
    seen, wanted = None, (mesh.all_prefill_workers, mesh.all_decode_workers)
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                seen = await health(address)
                if seen is not None and (seen.get("prefill"), seen.get("decode"), seen.get("processes", 1)) == (
                    *wanted,
                    processes,
                ):
                    return
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        what = f"{wanted[0]} prefill and {wanted[1]} decode workers"
        raise MeshFailed(f"the gateway does not see {what}; GET http://{address}/health says {seen}") from None
