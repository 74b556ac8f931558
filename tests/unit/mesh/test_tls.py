"""With TLS a peer that has no certificate of the CA gets nothing from any gRPC port; renewed files count at once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from mesh.config import ConfigError, DecodeConfig, GatewayConfig
from mesh.grpc_network import GrpcListening, GrpcNetwork
from mesh.grpc_stats import read_stats, stats_service
from mesh.messages import Heartbeat, Register, Tier
from mesh.network import Channel, Stream, StreamClosed
from mesh.tls import TlsFiles, tls_files
from tests.unit.certificates import Authority, files_in, openssl

REGISTER = Register("127.0.0.1:1", Tier.DECODE, 7)


class Port:
    """A served port and the calls that reached it, of all that a peer may try."""

    def __init__(self, listening: GrpcListening) -> None:
        self.listening = listening
        self.reached: list[str] = []

    async def attach(self, network: GrpcNetwork) -> None:
        await self._stream(network, Channel.ATTACH)

    async def session(self, network: GrpcNetwork) -> None:
        await self._stream(network, Channel.KV)

    async def register(self, network: GrpcNetwork) -> None:
        await network.register(self.listening.address, REGISTER)

    async def _stream(self, network: GrpcNetwork, channel: Channel) -> None:
        stream = await network.dial(self.listening.address, channel)
        stream.send(Heartbeat())
        assert await stream.receive() == Heartbeat()
        stream.close()


@asynccontextmanager
async def served(tls: TlsFiles | None) -> AsyncIterator[Port]:
    async def answer(name: str, stream: Stream) -> None:
        port.reached.append(name)
        await stream.receive()
        stream.send(Heartbeat())
        await stream.receive()

    accept = {
        Channel.ATTACH: lambda stream: answer("attach", stream),
        Channel.KV: lambda stream: answer("session", stream),
    }
    network = GrpcNetwork(tls=tls)
    listening = await network.listen("127.0.0.1:0", accept, lambda _: port.reached.append("register"))
    port = Port(listening)
    try:
        yield port
    finally:
        await listening.close()


CALLS: dict[str, Callable[[Port, GrpcNetwork], Coroutine[Any, Any, None]]] = {
    "attach": Port.attach,
    "session": Port.session,
    "register": Port.register,
}


class TrustingChannel(TlsFiles):
    """Shows no certificate, but trusts the mesh's authority."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.current().authority)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


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


def test_files_that_do_not_fit_together_are_not_used(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.files(tmp_path / "server")
    before = files.current()
    authority.sign(tmp_path / "next")
    (tmp_path / "next" / "key.pem").replace(tmp_path / "server" / "key.pem")
    with caplog.at_level(logging.WARNING):
        assert files.current() is before and files.current() is before
    assert caplog.text.count("tls_certificate") == 1
    (tmp_path / "next" / "certificate.pem").replace(tmp_path / "server" / "certificate.pem")
    assert files.current() is not before


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path, authority: Authority) -> None:
    files = authority.files(tmp_path / "server")
    before = files.current()
    (tmp_path / "server" / "ca.pem").rename(tmp_path / "ca.pem")
    assert files.current() is before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("certificate.pem", "nonsense", "tls_certificate: .*certificate.pem"),
        ("key.pem", "nonsense", "tls_certificate: .*key.pem"),
        ("ca.pem", "nonsense", "tls_ca: .*ca.pem"),
    ],
)
def test_files_that_cannot_be_used_at_start_are_named_by_their_key(
    tmp_path: Path, authority: Authority, name: str, content: str, message: str
) -> None:
    folder = authority.sign(tmp_path / "server")
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        files_in(folder)


def test_the_settings_name_the_files_of_every_service(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server")
    tls = {
        "tls_certificate": folder / "certificate.pem",
        "tls_key": folder / "key.pem",
        "tls_ca": folder / "ca.pem",
        "tls_name": "baton.internal",
    }
    for config in (GatewayConfig(**tls), DecodeConfig(**tls)):
        files = tls_files(config)
        assert files is not None
        assert files.name == "baton.internal"
        assert files.current().authority == authority.certificate.read_bytes()
    assert tls_files(GatewayConfig()) is None


async def test_a_peer_that_connects_and_says_nothing_holds_up_no_other(tmp_path: Path, authority: Authority) -> None:
    async with served(authority.files(tmp_path / "server")) as port:
        host, _, number = port.listening.address.rpartition(":")
        _, silent = await asyncio.open_connection(host, int(number))
        await port.attach(GrpcNetwork(tls=authority.files(tmp_path / "peer")))
        silent.close()


def test_an_encrypted_key_is_refused_and_no_passphrase_is_asked_for(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server")
    openssl(f"ec -in {folder}/key.pem -aes128 -passout pass:secret -out {folder}/encrypted.pem")
    (folder / "encrypted.pem").replace(folder / "key.pem")
    with pytest.raises(ConfigError, match=r"^tls_key: .*key.pem is encrypted.*openssl pkey"):
        files_in(folder)


def test_a_key_that_grpc_does_not_take_is_refused_at_start(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server", key_of="-newkey ed25519 -nodes -days 2")
    with pytest.raises(ConfigError, match=r"^tls_certificate: .* uses Ed25519, .*sign one with a key of P-256"):
        files_in(folder)


async def test_files_with_comments_in_any_letters_and_windows_line_ends_are_read(
    tmp_path: Path, authority: Authority
) -> None:
    folder = authority.sign(tmp_path / "server")
    for name in ("certificate.pem", "key.pem", "ca.pem"):
        content = (folder / name).read_bytes().replace(b"\n", b"\r\n")
        (folder / name).write_bytes("Zürich\r\n".encode() + content)
    async with served(files_in(folder)) as port:
        await port.attach(GrpcNetwork(tls=files_in(folder)))


@pytest.mark.parametrize(
    ("fault", "name", "message"),
    [
        ({"days": -1}, "", "certificate has expired"),
        ({"usage": "serverAuth"}, "", "unsuitable certificate purpose"),
        ({}, "baton.internal", "not valid for 'baton.internal'"),
        ({}, "", ""),
    ],
)
def test_a_certificate_that_its_own_peers_would_refuse_is_warned_about_at_start(
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, Any],
    name: str,
    message: str,
) -> None:
    folder = authority.sign(tmp_path / "server", **fault)
    files_in(folder, name=name)
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == bool(message)
    assert all("tls_certificate" in warning and message in warning for warning in warnings)


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
    monkeypatch.setattr("mesh.grpc_server.HANDSHAKE_SECONDS", 0.5)
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
