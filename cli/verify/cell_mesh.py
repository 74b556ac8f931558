"""The mesh of one cell: real processes on free ports, each worker with its tier's body.

`gateway.local` is never: everything that decode answers must have come through a hand-off, and the workers' own counts
show whether it did. A cell with speculation runs its decode workers under `cli/verify/restless_worker.py`; a sabotage
runs them under a program of its own."""

import os
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import Service
from cli.verify.bodies import WAYS, Roles
from cli.verify.cells import Cell
from mesh.config.settings import read_settings
from mesh.network.mesh_token import MeshToken, mesh_token
from mesh.network.tls import TlsFiles, tls_files

TIERS = ("prefill", "decode")
START_SECONDS = 180.0  # on a GPU whose kernels were never compiled, each worker compiles them
STEP_TOKENS = 512  # tokens of a prefill step
POOL_TOKENS = 32 * 1024  # enough that decode never preempts
READY = re.compile(r"(prefill|decode) ready at (\S+) .* body (\S+)")


@dataclass(frozen=True, slots=True)
class Tampering:
    """Changes that a sabotage makes to a cell's mesh: the program of all decode workers, the routing of the gateway."""

    decode_program: tuple[str, ...] = ()  # module and its first arguments; empty: the worker that serves
    local: str = "never"


@dataclass(frozen=True, slots=True)
class ReadyWorker:
    tier: str
    address: str
    body: str  # as the worker reports it


@dataclass(frozen=True, slots=True)
class CellMesh:
    gateway: str  # gRPC address
    tls: TlsFiles | None  # None: this mesh speaks plain text
    token: MeshToken | None = None  # None: calls between services show none
    workers: dict[str, ReadyWorker] = field(default_factory=dict)  # by name
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    def read(self, name: str, line: str) -> None:
        self.last_lines.append(f"    {name}: {line}")
        if found := READY.search(line):
            self.workers[name] = ReadyWorker(*found.groups())


@asynccontextmanager
async def running_cell(
    settings: Mapping[str, str], folder: Path, tampering: Tampering, roles: Roles | None
) -> AsyncIterator[CellMesh]:
    """A complete mesh; without `roles` every worker runs its fastest body."""
    overrides = {
        "model": str(folder),
        "served_name": folder.name,
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "gateway.local": tampering.local,
        "gateway.queue_seconds": "0",  # a slow body serves the last of a batch late
        **settings,
    }
    config = read_settings(None, os.environ, overrides).mesh()
    services = services_of(config, file=None, overrides=overrides, otlp_endpoint="")
    if roles is not None:
        services = [with_body(service, roles) for service in services]
    if tampering.decode_program:
        services = [with_program(service, *tampering.decode_program) for service in services]
    token = mesh_token(config.gateway, "gateway.worker_address", config.gateway.worker_address)
    mesh = CellMesh(config.gateway.grpc_address, tls_files(config.gateway), token)
    async with running_mesh(config, services, mesh.read, START_SECONDS):
        yield mesh


def settings_of(cell: Cell) -> dict[str, str]:
    """The cell as settings of a command line."""
    return {
        "mesh.prefill_workers": str(cell.workers),
        "mesh.decode_workers": str(cell.workers),
        "worker.device": cell.device,
        # The body comes through the environment (`with_body`).
        **{f"worker.{key}": value for key, value in WAYS.get(cell.path.partition(":")[0], {}).items()},
        "worker.speculation": cell.speculation,
        "worker.transports": cell.transport,
        "worker.chunk_tokens": str(cell.chunk),
        "prefill.step_tokens": str(STEP_TOKENS),
        **{f"{tier}.page_tokens": str(page) for tier, page in zip(TIERS, cell.pages, strict=True)},
        **{f"{tier}.pool_pages": str(POOL_TOKENS // page) for tier, page in zip(TIERS, cell.pages, strict=True)},
        "worker.prefix_cache": str(cell.cache).lower(),
        "decode.max_batch": str(cell.batch),
    }


def with_program(service: Service, module: str, *arguments: str) -> Service:
    """A decode worker runs under this module with its own settings; other services stay as they are."""
    if _tier(service) != "decode":
        return service
    return replace(service, arguments=("-m", module, *arguments, *service.arguments[len(_SERVE) + 1 :]))


def with_body(service: Service, roles: Roles) -> Service:
    """A worker runs the body of its tier; the gateway computes nothing."""
    tier = _tier(service)
    return service if tier == "gateway" else replace(service, environment=roles.environment(tier))


_SERVE = ("-m", "cli", "serve")


def _tier(service: Service) -> str:
    assert service.arguments[: len(_SERVE)] == _SERVE, service.arguments
    return service.arguments[len(_SERVE)]
