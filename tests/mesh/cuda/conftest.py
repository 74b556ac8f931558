"""A mesh of real processes whose workers have an emulated GPU, and the engine alone in this one.

The interpreter must be chosen before triton is imported, so these files run in a process of their own, which
`tests/mesh/test_cuda.py` starts. Elsewhere they are not collected."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from baton.client import Client
from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import Service, Supervisor
from cli.verify.answers import Best
from cli.verify.cell_mesh import READY
from cli.verify.outcomes import answer_of
from cli.verify.requests import VerifyRequest
from mesh.config.settings import read_settings
from mesh.network.grpc_stats import read_stats

if TYPE_CHECKING:
    from cli.verify.reference import Reference

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
START_SECONDS, ANSWER_SECONDS = 120.0, 120.0
PAGE_TOKENS, CHUNK_TOKENS, POOL_PAGES = 16, 16, 128


@dataclass
class GpuMesh:
    """prefill-0 pushes over cuda_ipc, prefill-1 over nccl, both to decode-0."""

    client: Client
    supervisor: Supervisor
    addresses: dict[str, str]  # addresses of the workers, by name
    classes: set[tuple[str, str]] = field(default_factory=set)

    async def answer(self, ask: VerifyRequest) -> tuple[Best, ...]:
        return await answer_of(self.client, ask, "gpu", self.classes, ANSWER_SECONDS)

    async def answers(self, asks: Sequence[VerifyRequest]) -> list[tuple[Best, ...]]:
        return await asyncio.gather(*(self.answer(ask) for ask in asks))

    async def counts(self, name: str) -> dict[str, int]:
        return await read_stats(self.addresses[name])

    async def until(self, what: Callable[[dict[str, dict[str, int]]], bool], seconds: float = 120.0) -> None:
        """Waits until the counts of all workers satisfy `what`."""
        async with asyncio.timeout(seconds):
            while not what({name: await self.counts(name) for name in self.addresses}):
                await asyncio.sleep(0.1)

    def kill(self, name: str) -> None:
        (running,) = (one for one in self.supervisor.running if one.service.name == name)
        assert running.process is not None
        running.process.kill()


@asynccontextmanager
async def gpu_mesh(folder: Path, cache: Path, **settings: str) -> AsyncIterator[GpuMesh]:
    from tests.mesh.cuda.emulated import emulated

    said = {
        "model": str(folder),
        "cache_folder": str(cache),
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "gateway.local": "never",
        "mesh.prefill_workers": "2",
        "mesh.decode_workers": "1",
        "worker.device": "cuda",
        "worker.page_tokens": str(PAGE_TOKENS),
        "worker.pool_pages": str(POOL_PAGES),
        "worker.chunk_tokens": str(CHUNK_TOKENS),
        "prefill.step_tokens": str(CHUNK_TOKENS),
        "worker.speculation": "off",
        **settings,
    }
    mesh = read_settings(overrides=said).mesh()
    services = [emulated(_over(one)) for one in services_of(mesh, file=None, overrides=said, otlp_endpoint="")]
    addresses, last_lines = dict[str, str](), deque[str](maxlen=40)

    def on_line(name: str, line: str) -> None:
        last_lines.append(f"{name}: {line}")
        if found := READY.search(line):
            addresses[name] = found[2]

    async with running_mesh(mesh, services, on_line, START_SECONDS) as supervisor:
        async with Client(mesh.gateway.grpc_address) as client:
            try:
                yield GpuMesh(client, supervisor, addresses)
            finally:
                print(*last_lines, sep="\n")  # pytest shows it where a test failed


def _over(service: Service) -> Service:
    """Each prefill worker over a transport of its own."""
    transport = {"prefill-0": "cuda_ipc", "prefill-1": "nccl"}.get(service.name)
    more = ("--set", f"prefill.transports={transport}") if transport else ()
    return replace(service, arguments=(*service.arguments, *more))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="session")
def folder(home: Path) -> Path:
    """The smallest model of which two layers travel one after the other."""
    from engine.builtin import tiny

    small: dict[str, Any] = {"hidden": 32, "ffn": 32, "heads": 2, "kv_heads": 1}
    return tiny(home / "model", "llama3", dtype="bf16", **small)


@pytest.fixture(scope="session")
def alone(folder: Path, home: Path) -> "Iterator[Reference]":
    import torch

    from cli.verify.reference import PAGE_TOKENS, on_gpu
    from engine.cuda import identity
    from engine.cuda.loaded import load_on_device
    from tests.mesh.cuda.emulated import self_test

    torch.set_num_threads(1)
    device = torch.device("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "self_test", self_test)
        model = load_on_device(folder, home / "cache", device, path="cuda-sm90", page_tokens=PAGE_TOKENS)
        engine = on_gpu(model, most_slots=256)
        yield engine
        engine.close()
