"""A mesh of real processes with TLS from one file: its own clients get answers and counts, others get nothing."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from mesh.config.services import MeshConfig
from mesh.config.settings import read_settings
from mesh.network.grpc_stats import read_stats
from mesh.network.tls import TlsFiles, tls_files
from tests.harness.client import MeshClient, TokenRequest
from tests.unit.certificates import Authority, files_in

pytestmark = pytest.mark.mesh

START_SECONDS = 120.0
REQUEST = TokenRequest("one", tuple(range(33, 97)), 4)


@dataclass
class EncryptedMesh:
    config: MeshConfig
    workers: dict[str, str] = field(default_factory=dict)  # addresses by tier

    def read(self, name: str, line: str) -> None:
        if found := re.search(r"(prefill|decode) ready at (\S+)", line):
            self.workers[found[1]] = found[2]


@asynccontextmanager
async def encrypted_mesh(folder: Path) -> AsyncIterator[EncryptedMesh]:
    """Its file names the TLS files by relative paths; pages travel over TCP only."""
    file = folder / "baton.toml"
    tls = ("tls_certificate = 'tls/certificate.pem'", "tls_key = 'tls/key.pem'", "tls_ca = 'tls/ca.pem'")
    file.write_text("\n".join((*tls, f"cache_folder = '{folder / 'cache'}'", "[worker]", "transports = ['tcp']")))
    overrides = {
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
        "gateway.local": "never",
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
    }
    mesh = EncryptedMesh(read_settings(file, overrides=overrides).mesh())
    services = services_of(mesh.config, file=file, overrides=overrides, otlp_endpoint="")
    async with running_mesh(mesh.config, services, mesh.read, START_SECONDS):
        yield mesh


async def answer(mesh: EncryptedMesh, tls: TlsFiles | None) -> tuple[int, str]:
    """Number of tokens, error."""
    client = MeshClient(mesh.config.gateway.grpc_address, tls)
    try:
        seen = await client.ask(REQUEST)
    finally:
        await client.aclose()
    return len(seen.tokens), seen.error


async def test_a_mesh_with_tls_answers_its_own_clients_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    authority.sign(tmp_path / "tls")
    stranger = Authority(tmp_path / "other").sign(tmp_path / "stranger")
    (stranger / "ca.pem").write_bytes(authority.certificate.read_bytes())
    async with encrypted_mesh(tmp_path) as mesh:
        tls = tls_files(mesh.config.gateway)
        assert await answer(mesh, tls) == (4, "")
        counts = await read_stats(mesh.workers["decode"], tls=tls)
        assert counts["admitted_remote"] == 1 and counts["bytes_landed"] > 0
        for other in (None, files_in(stranger)):
            tokens, error = await answer(mesh, other)
            assert tokens == 0 and error.startswith("UNAVAILABLE")
            for address in mesh.workers.values():
                with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                    await read_stats(address, tls=other)
