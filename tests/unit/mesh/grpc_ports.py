"""Ports served for one test, and a service that answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mesh.messages.orders import Cancel
from mesh.messages.reports import Load
from mesh.network.grpc_network import GrpcListening, GrpcNetwork
from mesh.network.interface import Accept, Channel, OnRegister, Stream


async def echo(stream: Stream) -> None:
    """Answers Cancel n with Load n, until the stream ends."""
    while True:
        message = await stream.receive()
        assert isinstance(message, Cancel)
        stream.send(Load(waiting=message.attempt))


@asynccontextmanager
async def listening(
    accept: dict[Channel, Accept], on_register: OnRegister | None = None
) -> AsyncIterator[GrpcListening]:
    server = await GrpcNetwork().listen("127.0.0.1:0", accept, on_register)
    try:
        yield server
    finally:
        await server.close()
