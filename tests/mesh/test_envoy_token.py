"""A mesh behind real Envoys that has a token as well: the Envoys pass it on, and without it nobody gets further."""

from pathlib import Path

import pytest

from mesh.network.grpc_network import GrpcNetwork
from mesh.network.interface import Channel, StreamClosed
from mesh.network.mesh_token import MeshToken
from tests.harness.client import MeshClient, TokenRequest
from tests.harness.envoys import envoy_mesh

pytestmark = pytest.mark.envoy


async def test_a_token_passes_through_the_envoys_and_is_asked_for_behind_them(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t" * 64)
    settings = {"gateway.local": "never", "worker.threads": "1", "mesh_token_file": str(file)}
    async with envoy_mesh(tmp_path, prefills=1, decodes=1, settings=settings) as mesh:
        client = MeshClient(mesh.address, mesh.tls)
        seen = await client.ask(TokenRequest("one", tuple(range(33, 97)), 4))
        await client.aclose()
        assert (len(seen.tokens), seen.error) == (4, "")
        address, sidecar = mesh.member("decode-1").address, mesh.ports["gateway"].outbound
        with pytest.raises(StreamClosed, match="UNAUTHENTICATED"):
            await GrpcNetwork(sidecar=sidecar).dial(address, Channel.ATTACH)
        (await GrpcNetwork(sidecar=sidecar, token=MeshToken(file)).dial(address, Channel.ATTACH)).close()
