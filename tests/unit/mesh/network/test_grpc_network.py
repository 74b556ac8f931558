"""Dialling and registering over real sockets: a peer that is not there is StreamClosed, at once or in time."""

import asyncio
import socket
from typing import Any

import pytest

from mesh.messages.jobs import Tier
from mesh.messages.reports import Register
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.interface import Channel, Stream, StreamClosed
from tests.unit.mesh.grpc_ports import echo, listening


async def test_register_reaches_the_gateway_and_answers() -> None:
    seen: list[Register] = []
    message = Register("127.0.0.1:1", Tier.DECODE, 2**63)
    async with listening({}, seen.append) as server:
        await GrpcNetwork().register(server.address, message)
    assert seen == [message]


async def test_nobody_at_an_address_is_stream_closed_at_once() -> None:
    async with listening({}) as server:
        address = server.address
    network = GrpcNetwork(dial_seconds=3600.0)
    with pytest.raises(StreamClosed, match=address):
        await network.dial(address, Channel.ATTACH)
    with pytest.raises(StreamClosed, match=address):
        await network.register(address, Register("a:1", Tier.PREFILL, 1))


async def test_an_address_that_comes_up_is_reached_at_once_after_failed_tries() -> None:
    async with listening({}) as server:
        address = server.address
    network = GrpcNetwork()
    for _ in range(3):
        with pytest.raises(StreamClosed):
            await network.dial(address, Channel.ATTACH)
    server = await network.listen(address, {Channel.ATTACH: echo})
    stream = await network.dial(address, Channel.ATTACH)  # gRPC would still be backing off
    stream.close()
    await server.close()


async def test_dialling_a_service_that_is_not_there_says_so() -> None:
    async with listening({Channel.ATTACH: echo}) as server:
        with pytest.raises(StreamClosed, match="KvService"):
            await GrpcNetwork().dial(server.address, Channel.KV)


async def test_a_service_that_ends_its_stream_at_once_was_there() -> None:
    async def leave(stream: Stream) -> None:
        stream.close()

    async with listening({Channel.ATTACH: leave}) as server:
        for _ in range(50):  # the end may come before, with or after the greeting
            stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
            with pytest.raises(StreamClosed, match="ended"):
                await asyncio.wait_for(stream.receive(), 30)


async def test_an_address_that_accepts_but_never_answers_is_stream_closed_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        network = GrpcNetwork(dial_seconds=0.3)
        async with asyncio.timeout(30):
            with pytest.raises(StreamClosed, match=address):
                await network.dial(address, Channel.ATTACH)


async def test_a_name_stands_for_every_address_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {
        "many": [(socket.AF_INET, "10.0.0.2"), (socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "fd00::1")],
        "one": [(socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "fd00::1")],
        "six": [(socket.AF_INET6, "fd00::1"), (socket.AF_INET6, "fd00::2")],
    }

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if host not in records:
            raise socket.gaierror("unknown")
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in records[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    network = GrpcNetwork()
    assert await network.resolve("many:5") == ("10.0.0.1:5", "10.0.0.2:5")
    assert await network.resolve("six:5") == ("[fd00::1]:5", "[fd00::2]:5")
    assert await network.resolve("one:5") == ("one:5",)
    assert await network.resolve("unknown:5") == ("unknown:5",)
    assert await GrpcNetwork(sidecar="127.0.0.1:1").resolve("many:5") == ("many:5", "many:5")
