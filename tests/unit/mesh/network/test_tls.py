"""With TLS a peer that has no certificate of the CA gets nothing from any gRPC port; renewed files count at once."""

import asyncio
from pathlib import Path

import grpc
import pytest

from mesh.messages.message import Heartbeat
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stats import read_stats, stats_service
from mesh.network.interface import Channel, StreamClosed
from mesh.network.tls import TlsFiles
from tests.unit.certificates import Authority, files_in
from tests.unit.mesh.tls_port import CALLS, served


class TrustingChannel(TlsFiles):
    """Shows no certificate, but trusts the mesh's authority."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.current().authority)


def strangers(folder: Path, authority: Authority) -> dict[str, TlsFiles | None]:
    """Peers that no port may let in."""
    other = Authority(folder / "other-authority")
    mixed = other.sign(folder / "mixed")
    (mixed / "ca.pem").write_bytes(authority.certificate.read_bytes())  # it trusts the server, as a thief would
    bare = authority.sign(folder / "bare")
    return {
        "plain text": None,
        "no certificate": TrustingChannel(bare / "certificate.pem", bare / "key.pem", bare / "ca.pem"),
        "another CA's certificate": files_in(mixed),
    }


@pytest.mark.parametrize("call", CALLS)
async def test_only_a_peer_with_a_certificate_of_the_ca_reaches_a_port(
    call: str, tmp_path: Path, authority: Authority
) -> None:
    async with served(authority.files(tmp_path / "server")) as port:
        for name, tls in strangers(tmp_path, authority).items():
            with pytest.raises(StreamClosed):
                await CALLS[call](port, GrpcNetwork(tls=tls, dial_seconds=3.0))
            assert port.reached == [], name
        await CALLS[call](port, GrpcNetwork(tls=authority.files(tmp_path / "peer")))
        assert port.reached == [call]


@pytest.mark.parametrize("call", CALLS)
async def test_negative_control_without_tls_every_peer_in_plain_text_reaches_the_port(call: str) -> None:
    async with served(None) as port:
        await CALLS[call](port, GrpcNetwork())
        assert port.reached == [call]


async def test_a_dial_sends_nothing_to_a_server_of_another_ca(tmp_path: Path, authority: Authority) -> None:
    async with served(Authority(tmp_path / "other").files(tmp_path / "server")) as port:
        with pytest.raises(StreamClosed):
            await port.attach(GrpcNetwork(tls=authority.files(tmp_path / "peer")))
        assert port.reached == []


async def test_a_server_whose_certificate_names_another_host_is_refused_unless_tls_name_says_so(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(authority.files(tmp_path / "server", names="DNS:baton.internal")) as port:
        peer = authority.sign(tmp_path / "peer")
        with pytest.raises(StreamClosed):
            await port.attach(GrpcNetwork(tls=files_in(peer)))
        await port.attach(GrpcNetwork(tls=files_in(peer, name="baton.internal")))
        assert port.reached == ["attach"]


async def test_renewed_files_are_used_for_the_next_connection_at_both_ends(
    tmp_path: Path, authority: Authority
) -> None:
    server, peer = authority.files(tmp_path / "server"), authority.files(tmp_path / "peer")
    async with served(server) as port:
        network = GrpcNetwork(tls=peer)
        await port.attach(network)
        new = Authority(tmp_path / "new")
        new.sign(tmp_path / "server")
        with pytest.raises(StreamClosed):  # it still shows the old authority's certificate
            await port.attach(network)
        new.sign(tmp_path / "peer")
        await port.attach(network)
        assert port.reached == ["attach", "attach"]


async def test_a_connection_that_stands_survives_the_renewal(tmp_path: Path, authority: Authority) -> None:
    async with served(authority.files(tmp_path / "server")) as port:
        stream = await GrpcNetwork(tls=authority.files(tmp_path / "peer")).dial(port.listening.address, Channel.ATTACH)
        Authority(tmp_path / "new").sign(tmp_path / "server")
        stream.send(Heartbeat())
        assert await stream.receive() == Heartbeat()
        stream.close()


async def test_a_peer_that_connects_and_says_nothing_holds_up_no_other(tmp_path: Path, authority: Authority) -> None:
    async with served(authority.files(tmp_path / "server")) as port:
        host, _, number = port.listening.address.rpartition(":")
        _, silent = await asyncio.open_connection(host, int(number))
        await port.attach(GrpcNetwork(tls=authority.files(tmp_path / "peer")))
        silent.close()


async def test_the_error_of_a_failed_dial_says_which_setting_to_change(tmp_path: Path, authority: Authority) -> None:
    ours, other = authority.files(tmp_path / "ours"), Authority(tmp_path / "other")
    foreign, theirs = other.files(tmp_path / "foreign"), other.sign(tmp_path / "theirs")
    (theirs / "ca.pem").write_bytes(authority.certificate.read_bytes())
    refused = files_in(theirs)
    misnamed = files_in(tmp_path / "ours", name="baton.internal")
    expired = files_in(authority.sign(tmp_path / "expired", days=-1))
    cases = (
        (ours, None, "it may want TLS, which this process does not speak: set tls_certificate"),
        (None, ours, "it speaks plain text and this process TLS: set tls_certificate"),
        (ours, misnamed, r"does not carry 'baton.internal' \(tls_name\)"),
        (ours, foreign, "no authority of tls_ca signed its certificate"),
        (ours, refused, "it may refuse this process's tls_certificate"),
        (expired, ours, "its certificate has expired"),
    )
    for server, client, message in cases:
        async with served(server) as port:
            with pytest.raises(StreamClosed, match=message):
                await port.register(GrpcNetwork(tls=client))
            with pytest.raises(StreamClosed, match=message):
                await port.attach(GrpcNetwork(tls=client))


@pytest.mark.parametrize("first_bytes", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_a_connection_that_never_ends_its_handshake_is_closed(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, first_bytes: bytes
) -> None:
    monkeypatch.setattr("mesh.network.grpc_server.HANDSHAKE_SECONDS", 0.5)
    async with served(authority.files(tmp_path / "server")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port.listening.address.rpartition(":")[2]))
        writer.write(first_bytes)
        await port.attach(GrpcNetwork(tls=authority.files(tmp_path / "peer")))
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_counts_are_read_with_a_certificate_only(tmp_path: Path, authority: Authority) -> None:
    network = GrpcNetwork(tls=authority.files(tmp_path / "server"), also=stats_service(lambda: {"steps": 3}))
    listening = await network.listen("127.0.0.1:0", {})
    try:
        assert await read_stats(listening.address, tls=authority.files(tmp_path / "peer")) == {"steps": 3}
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await read_stats(listening.address)
    finally:
        await listening.close()
