"""The network inside one process: the same streams without sockets, for simulations, tests and Baton as a library.

Messages travel as over a socket, in bytes and in pieces, in order, with latencies that the given random generator
draws. A test can hold messages back, break a stream and cut off a host: so it reaches every interleaving of
docs/protocol.md without patching anything."""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

from mesh.messages.codec import Envelope, decode_register, encode_register
from mesh.messages.message import Message
from mesh.messages.pieces import pieces
from mesh.messages.reports import Register
from mesh.network.envelopes import ENVELOPES
from mesh.network.interface import Accept, Channel, OnRegister, StreamClosed

Held = Callable[[str, str, Message], bool]  # (sender, receiver, message) -> whether to keep the message back
Rewrite = Callable[[str, Message], Message]  # (sender, message) -> the message that travels in its place


class MemoryStream:
    def __init__(self, network: "MemoryNetwork", here: str, peer: str, outbound: Envelope) -> None:
        self.here, self.peer = here, peer
        self.other: MemoryStream | None = None
        self._network, self._outbound = network, outbound
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._way: deque[Message | None] = deque()  # sent by the other end and not delivered; None: the end
        self._closed = False

    def send(self, message: Message) -> None:
        if not self._closed and self.other is not None:
            raw = self._outbound.encode(self._network.rewrite(self.here, message))
            for piece in pieces(self._outbound.decode(raw)):
                self.other.travel(piece)

    def travel(self, message: Message | None) -> None:
        self._way.append(message)
        self._network.later(self.deliver)

    def deliver(self) -> None:
        """The first message on the way arrives, unless a test holds it back."""
        if self._way and not self._network.holds(self.peer, self.here, self._way[0]):
            message = self._way.popleft()
            self._network.note(self.peer, self.here, message)
            self._inbox.put_nowait(message)

    def flush(self) -> None:
        for _ in range(len(self._way)):
            self.deliver()

    async def receive(self) -> Message:
        if self._closed and self._inbox.empty():
            raise StreamClosed(self.peer)
        message = await self._inbox.get()
        if message is None:
            self._closed = True
            raise StreamClosed(self.peer)
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.put_nowait(None)
            if self.other is not None:
                self.other.travel(None)

    def snap(self) -> None:
        """The stream breaks: messages on the way are lost, and this end sees StreamClosed."""
        self._way.clear()
        self.travel(None)


Served = tuple[dict[Channel, Accept], OnRegister | None]  # a process that listens, as the network calls it


class MemoryListening:
    def __init__(self, network: "MemoryNetwork", address: str, served: Served) -> None:
        self.address = address
        self.serving = True
        self._network, self._served = network, served

    async def set_serving(self, serving: bool) -> None:
        self.serving = serving

    async def close(self) -> None:
        """Another process that listens at this address since then goes on listening."""
        if self._network.served(self.address) is self._served:
            self._network.unlisten(self.address)


class MemoryNetwork:
    """The network between all hosts; `host(name)` is the part that one service is handed."""

    def __init__(
        self, random: Random, *, latency_seconds: tuple[float, float] = (0.0001, 0.001), logged: bool = True
    ) -> None:
        """`logged`: every message stays in `log`, for as long as the network lives."""
        self.streams: list[MemoryStream] = []
        self.holding: list[Held] = []
        self.rewrite: Rewrite = lambda source, message: message
        self.log: list[tuple[float, str, str, str]] = []
        self._random, self._latency, self._logged = random, latency_seconds, logged
        self._accept: dict[str, Served] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def host(self, name: str) -> "MemoryHost":
        return MemoryHost(self, name)

    def later(self, call: Callable[[], None]) -> None:
        loop, seconds = asyncio.get_running_loop(), self._random.uniform(*self._latency)
        if seconds:
            loop.call_later(seconds, call)
        else:
            loop.call_soon(call)  # timers have a resolution of a millisecond

    def note(self, source: str, target: str, message: Message | None) -> None:
        if not self._logged:
            return
        what = "closed" if message is None else type(message).__name__
        self.log.append((round(asyncio.get_running_loop().time(), 6), source, target, what))

    # ---- what tests do to the network

    def holds(self, source: str, target: str, message: Message | None) -> bool:
        return message is not None and any(held(source, target, message) for held in self.holding)

    def hold(self, held: Held) -> Callable[[], None]:
        """Keep messages back, and those behind them on their stream, until the test calls the returned function."""
        self.holding.append(held)

        def release() -> None:
            self.holding.remove(held)
            for stream in self.streams:
                stream.flush()

        return release

    def snap(self, one: str, other: str) -> None:
        for stream in self.streams:
            if {stream.here, stream.peer} == {one, other}:
                stream.snap()

    def served(self, address: str) -> Served | None:
        """The process that listens at this address now; None: no process does."""
        return self._accept.get(address)

    def unlisten(self, address: str) -> None:
        self._accept.pop(address, None)

    # ---- what hosts do with the network

    def listen(self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None) -> Served:
        if address in self._accept:
            raise OSError(f"address {address} is in use")
        self._accept[address] = served = (accept, on_register)
        return served

    async def dial(self, source: str, address: str, channel: Channel) -> MemoryStream:
        await asyncio.sleep(self._random.uniform(*self._latency))
        if address not in self._accept or channel not in self._accept[address][0]:
            raise StreamClosed(address)
        here, there = self.pair(source, address, channel)
        task = asyncio.ensure_future(self._serve(self._accept[address][0][channel], there))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return here

    def pair(self, source: str, address: str, channel: Channel) -> tuple[MemoryStream, MemoryStream]:
        """Both ends of a new stream."""
        out, back = ENVELOPES[channel]
        here, there = MemoryStream(self, source, address, out), MemoryStream(self, address, source, back)
        here.other, there.other = there, here
        self.streams += [here, there]
        return here, there

    async def _serve(self, accept: Accept, stream: MemoryStream) -> None:
        try:
            await accept(stream)
        finally:
            stream.close()
            if stream.other is not None:
                self.streams = [s for s in self.streams if s not in (stream, stream.other) or s._way]

    async def register(self, gateway: str, message: Register) -> None:
        await asyncio.sleep(self._random.uniform(*self._latency))
        on_register = self._accept.get(gateway, ({}, None))[1]
        if on_register is None:
            raise StreamClosed(gateway)
        on_register(decode_register(encode_register(message)))


class MemoryHost:
    """The network as one host sees it."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self._network = network

    async def listen(
        self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None = None
    ) -> MemoryListening:
        return MemoryListening(self._network, address, self._network.listen(address, accept, on_register))

    async def dial(self, address: str, channel: Channel) -> MemoryStream:
        return await self._network.dial(self.name, address, channel)

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return (gateway,)

    async def register(self, gateway: str, message: Register) -> None:
        await self._network.register(gateway, message)
