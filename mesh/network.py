"""The network as services see it: ordered streams of messages that are handed in, never made here.

`mesh/grpc_network.py` is the real one; `MemoryNetwork` (mesh/memory_network.py) runs the same services inside one
process under a virtual clock. A stream is reliable until it breaks; nothing orders two streams."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from mesh.messages import Message, Register


class StreamClosed(Exception):
    """The stream is over: the peer closed it, it broke, or this end did."""


class Channel(Enum):
    ATTACH = "attach"  # gateway dials worker
    KV = "kv"  # prefill dials decode


class Stream(Protocol):
    peer: str  # for messages to people only

    def send(self, message: Message) -> None:
        """Queue a message; never blocks. After the stream broke it is swallowed."""

    async def receive(self) -> Message:
        """The next message; StreamClosed when there is none any more."""

    def close(self) -> None:
        """End the stream for both sides; idempotent."""


Accept = Callable[[Stream], Awaitable[None]]  # runs for as long as the stream is served
OnRegister = Callable[[Register], None]


class Listening(Protocol):
    address: str  # what others dial

    async def set_serving(self, serving: bool) -> None:
        """What health checks are told."""

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None = None
    ) -> Listening: ...

    async def dial(self, address: str, channel: Channel) -> Stream:
        """StreamClosed when nobody answers."""

    async def register(self, gateway: str, message: Register) -> None:
        """Tell one gateway to dial; StreamClosed when it does not answer."""
