"""The network as services see it: ordered streams of messages. Each service is handed its network when it is built.

`mesh/network/grpc_network.py` is the real one; `MemoryNetwork` (mesh/network/memory_network.py) runs the same services
inside one process under a virtual clock. A stream is reliable until it breaks; nothing orders two streams."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from mesh.messages.message import Message
from mesh.messages.reports import Register


class StreamClosed(Exception):
    """The stream is over: either end has closed it, or it broke."""


class Channel(Enum):
    ATTACH = "attach"  # gateway dials worker
    KV = "kv"  # prefill dials decode


class Stream(Protocol):
    peer: str  # name of the other end, for log and error texts only

    def send(self, message: Message) -> None:
        """Queue a message; never blocks. A stream that is over drops it."""

    async def receive(self) -> Message:
        """Wait for the next message; raises StreamClosed when no more can come."""

    def close(self) -> None:
        """End the stream for both ends; further calls do nothing."""


Accept = Callable[[Stream], Awaitable[None]]  # serves one stream and returns when it is done with it
OnRegister = Callable[[Register], None]


class Listening(Protocol):
    address: str  # the address that others dial

    async def set_serving(self, serving: bool) -> None:
        """Set what health checks answer."""

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None = None
    ) -> Listening: ...

    async def dial(self, address: str, channel: Channel) -> Stream:
        """Open a stream; raises StreamClosed when no service answers at the address."""

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        """Addresses of all gateways that this one stands for, each to register with; itself if it is but one."""

    async def register(self, gateway: str, message: Register) -> None:
        """Ask one gateway to dial; raises StreamClosed when it does not answer."""
