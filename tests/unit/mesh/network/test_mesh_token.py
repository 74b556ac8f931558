"""The token of a mesh over real sockets: a stranger gets UNAUTHENTICATED at every call, and members get through."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.worker_config import DecodeConfig, PrefillConfig
from mesh.messages.jobs import Tier
from mesh.messages.orders import Cancel
from mesh.messages.reports import Load, Register
from mesh.network import token_guard
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stats import read_stats, stats_service
from mesh.network.interface import Channel, StreamClosed
from mesh.network.mesh_token import HEADER, MeshToken, mesh_token
from tests.unit.certificates import Authority
from tests.unit.mesh.grpc_ports import echo

OLD, NEW = "o" * 32, "n" * 32
MESSAGE = Register("127.0.0.1:1", Tier.DECODE, 7)
CALLS = ("register", "attach", "session", "stats")


def token_in(file: Path, *lines: str) -> MeshToken:
    file.write_text("\n".join((*lines, "")))
    return MeshToken(file)


class TokenPort:
    """A port that serves everything a service of a mesh serves, and what reached it."""

    def __init__(self) -> None:
        self.registered: list[Register] = []
        self.listening: Any = None

    async def call(self, name: str, token: MeshToken | None) -> None:
        network, address = GrpcNetwork(token=token), self.listening.address
        if name == "register":
            await network.register(address, MESSAGE)
        elif name == "stats":
            assert await read_stats(address, token=token) == {"steps": 3}
        elif name == "attach":
            stream = await network.dial(address, Channel.ATTACH)
            stream.send(Cancel(1, 5))
            assert await stream.receive() == Load(waiting=5)
            stream.close()
        else:
            (await network.dial(address, Channel.KV)).close()


@asynccontextmanager
async def port(token: MeshToken | None) -> AsyncIterator[TokenPort]:
    opened, network = TokenPort(), GrpcNetwork(token=token, also=stats_service(lambda: {"steps": 3}))
    accept = {Channel.ATTACH: echo, Channel.KV: echo}
    opened.listening = await network.listen("127.0.0.1:0", accept, opened.registered.append)
    try:
        yield opened
    finally:
        await opened.listening.close()


@pytest.mark.parametrize("name", CALLS)
async def test_a_stranger_gets_nothing_and_a_member_is_served(name: str, tmp_path: Path) -> None:
    mine, other = token_in(tmp_path / "mine", NEW), token_in(tmp_path / "other", OLD)
    async with port(mine) as served:
        for stranger in (None, other):
            with pytest.raises((StreamClosed, grpc.aio.AioRpcError), match=r"UNAUTHENTICATED|no token of this mesh"):
                await served.call(name, stranger)
        assert served.registered == []
        await served.call(name, mine)
        assert served.registered == ([MESSAGE] if name == "register" else [])


@pytest.mark.parametrize("name", CALLS)
async def test_negative_control_without_the_guard_a_stranger_is_served(name: str) -> None:
    async with port(None) as served:
        await served.call(name, None)


async def test_health_checks_need_no_token_and_other_methods_say_nothing(tmp_path: Path) -> None:
    async with port(token_in(tmp_path / "token", NEW)) as served:
        async with grpc.aio.insecure_channel(served.listening.address) as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
            for method in ("/baton.admin.v1.AdminService/Drain", "/no.such/Method"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(method)(b"")
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_metadata_counts_once_and_whole(tmp_path: Path) -> None:
    token = token_in(tmp_path / "token", NEW)
    for shown in ((), None, ((HEADER, NEW[:-1]),), ((HEADER, NEW), (HEADER, NEW)), ((HEADER, ""),), (("x", NEW),)):
        assert not token.accepts(shown)
    assert token.accepts(((HEADER, NEW),)) and token.accepts(((HEADER, NEW.encode()),))


async def test_strangers_cannot_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with port(token_in(tmp_path / "token", NEW)) as served:
        for _ in range(20):
            with pytest.raises(StreamClosed):
                await served.call("register", None)
    lines = [message for message in caplog.messages if "token of this mesh" in message]
    assert len(lines) == 1 and "/baton.worker.v1.RegistryService/Register" in lines[0] and "127.0.0.1" in lines[0]


async def test_refusals_are_counted_in_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with port(token_in(tmp_path / "token", NEW)) as served:
        for seconds in (60.0, 60.0, 0.0):
            monkeypatch.setattr(token_guard, "LOG_SECONDS", seconds)
            with pytest.raises(StreamClosed):
                await served.call("attach", None)
    counts = [message.split()[0] for message in caplog.messages if "token of this mesh" in message]
    assert counts == ["1", "2"]


async def test_a_token_is_replaced_while_the_mesh_serves(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token_in(file, OLD)
    server, early, late = MeshToken(file), MeshToken(file), token_in(tmp_path / "late", NEW)
    async with port(server) as served:
        await served.call("register", early)
        file.write_text(f"{OLD}\n{NEW}\n")
        await served.call("register", early)
        await served.call("register", late)
        file.write_text("")  # in the middle of a replacement
        await served.call("register", late)
        file.write_text(f"{NEW}\n")
        await served.call("register", late)
        with pytest.raises(StreamClosed, match="no token"):
            await served.call("register", token_in(tmp_path / "old", OLD))


@pytest.mark.parametrize(
    "content", ["", "\n", "short\n", "has a space in its middle\n", "x" * 513, "ümläutümläutümläut"]
)
def test_a_file_without_a_token_is_an_error_that_names_the_setting(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content, "utf-8")
    with pytest.raises(ConfigError, match=r"mesh_token_file: .* must hold a token"):
        MeshToken(tmp_path / "token")
    with pytest.raises(ConfigError, match=r"mesh_token_file: .* cannot be read"):
        MeshToken(tmp_path / "missing")


def test_a_service_that_others_can_reach_needs_a_token_or_tls(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token_in(file, NEW)
    open_port = "10.0.0.1:7001"
    with pytest.raises(ConfigError, match=rf"address: {open_port} can be reached .* set mesh_token_file .* tls_"):
        mesh_token(DecodeConfig(address=open_port), "decode.address", open_port)
    guarded = DecodeConfig(address=open_port, mesh_token_file=file)
    assert mesh_token(guarded, "decode.address", open_port) is not None
    Authority(tmp_path / "authority").sign(tmp_path / "tls")
    files = {"tls_certificate": "certificate.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}
    encrypted = DecodeConfig(address=open_port, **{key: tmp_path / "tls" / name for key, name in files.items()})  # type: ignore[arg-type]
    assert mesh_token(encrypted, "decode.address", open_port) is None
    for loopback in ("127.0.0.1:0", "[::1]:7000", "localhost:7000"):
        assert mesh_token(DecodeConfig(address=loopback), "decode.address", loopback) is None


def test_all_services_of_a_mesh_have_one_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mesh_token_file: .* set it at the top"):
        MeshConfig(
            gateway=GatewayConfig(mesh_token_file=tmp_path / "a"), prefill=PrefillConfig(), decode=DecodeConfig()
        )
