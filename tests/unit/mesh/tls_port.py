"""A served gRPC port, and everything that a peer may try there."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from mesh.messages.jobs import Tier
from mesh.messages.message import Heartbeat
from mesh.messages.reports import Register
from mesh.network.grpc_network import GrpcListening, GrpcNetwork
from mesh.network.interface import Channel, Stream
from mesh.network.tls import TlsFiles

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
