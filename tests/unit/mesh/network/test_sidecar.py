"""Dialling through a sidecar: the sidecar is dialled in place of the peer, and each refusal says what to do.

That the authority chooses the peer is shown with real Envoys in tests/mesh/test_envoy_mesh.py."""

from pathlib import Path

import pytest

from cli.local_mesh.ports import free_address
from mesh.messages.jobs import Tier
from mesh.messages.orders import Cancel
from mesh.messages.reports import Load, Register
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.interface import Channel, StreamClosed
from mesh.network.sidecar_advice import UNKNOWN_PEER, with_sidecar_advice
from tests.unit.certificates import Authority
from tests.unit.mesh.grpc_ports import echo, listening


async def test_a_dial_goes_to_the_sidecar_in_plain_text_even_with_tls_files(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "authority").files(tmp_path / "own")
    seen: list[Register] = []
    async with listening({Channel.ATTACH: echo}, seen.append) as sidecar:
        network = GrpcNetwork(sidecar=sidecar.address, tls=tls)
        stream = await network.dial("decode-9:7000", Channel.ATTACH)
        stream.send(Cancel(1, 5))
        assert await stream.receive() == Load(waiting=5)
        stream.close()
        await network.register("gateway-9:50051", Register("decode-9:7000", Tier.DECODE, 1))
    assert [register.address for register in seen] == ["decode-9:7000"]


async def test_a_sidecar_that_is_not_there_is_named_with_its_setting() -> None:
    address = free_address()
    with pytest.raises(StreamClosed, match=f"^decode-9:7000: .*no Envoy answers at {address}: .*`sidecar`"):
        await GrpcNetwork(sidecar=address).dial("decode-9:7000", Channel.ATTACH)


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        (f"{UNKNOWN_PEER} decode-9:7000", "a --peer of exactly this address"),
        ("RBAC: access denied", "refuses this process's identity"),
        ("no healthy upstream", "its health checks or its last calls failed"),
        ("upstream connect error or disconnect/reset before headers. reset reason: connection timeout", "access log"),
        ("TLS_error:|268435581:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", "carry the SPIFFE id"),
        ("TLS_error:|268436498:SSL routines:OPENSSL_internal:SSLV3_ALERT_HANDSHAKE_FAILURE", "one authority"),
    ],
)
def test_a_refusal_by_envoy_comes_with_its_remedy(problem: str, remedy: str) -> None:
    advised = with_sidecar_advice(problem, "127.0.0.1:15001")
    assert advised.startswith(f"{problem} (") and remedy in advised


def test_any_other_reason_stands_alone() -> None:
    assert with_sidecar_advice("the model is too large", "127.0.0.1:15001") == "the model is too large"
