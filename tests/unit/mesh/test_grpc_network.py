"""Dialling and registering over real sockets: a peer that is not there is StreamClosed, at once or in time."""

import asyncio
import socket

import pytest

from mesh.grpc_network import GrpcNetwork
from mesh.messages import (
    Register,
    Tier,
)
from mesh.network import Channel, Stream, StreamClosed
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
