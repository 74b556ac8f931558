"""Network and page transports between nodes: what arrives is handled by the receiving node, and a frozen one must wait.

Both ways between two hosts can be cut, or one alone: then messages wait, as TCP repeats them, and dials time out. Spans
can arrive torn, late, not at all or twice, and the second copy of a frame may be damaged."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from random import Random

from kvtransfer.memory import Fabric, MemoryReceiver, MemoryTransport, Write
from kvtransfer.transfer import Pool
from mesh.messages.codec import decode_register, encode_register
from mesh.messages.message import Message
from mesh.messages.reports import Register
from mesh.network.interface import Accept, Channel, OnRegister, StreamClosed
from mesh.network.memory_network import MemoryNetwork, MemoryStream, Served

DIAL_SECONDS = 1.0  # until a dial over a cut way is given up
Noted = Callable[[str, str, Message | None], None]


class NodeNetwork(MemoryNetwork):
    def __init__(self, random: Random, *, latency_seconds: tuple[float, float], noted: Noted) -> None:
        super().__init__(random, latency_seconds=latency_seconds)
        self.cuts: list[tuple[str, str]] = []  # (sender, receiver): nothing of it arrives
        self._noted = noted
        self._contexts: dict[str, Context] = {}

    def later(self, call: Callable[[], None]) -> None:
        """The network itself belongs to no node: what is on its way arrives whatever happens to the sender."""
        asyncio.get_running_loop().call_later(self._random.uniform(*self._latency), call, context=Context())

    def note(self, source: str, target: str, message: Message | None) -> None:
        self._noted(source, target, message)

    def holds(self, source: str, target: str, message: Message | None) -> bool:
        return (source, target) in self.cuts or super().holds(source, target, message)

    def cut(self, source: str, target: str) -> None:
        self.cuts.append((source, target))

    def mend(self, source: str, target: str) -> None:
        if (source, target) in self.cuts:
            self.cuts.remove((source, target))
            for stream in list(self.streams):
                if (stream.peer, stream.here) == (source, target):
                    stream.flush()

    def drop(self, name: str, *, arrive: bool) -> None:
        """End all streams of a host whose process is gone. `arrive`: the other ends first get what it has sent."""
        for stream in list(self.streams):
            if stream.here == name and stream.other is not None:
                if not arrive:
                    stream.other.snap()
                else:
                    stream.other.travel(None)
                stream.snap()
        self.unlisten(name)

    def listen(self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None) -> Served:
        self._contexts[address] = copy_context()
        return super().listen(address, accept, on_register)

    async def dial(self, source: str, address: str, channel: Channel) -> MemoryStream:
        await asyncio.sleep(self._random.uniform(*self._latency))
        await self._reach(source, address)
        if address not in self._accept or channel not in self._accept[address][0]:
            raise StreamClosed(address)
        here, there = self.pair(source, address, channel)
        work = self._serve(self._accept[address][0][channel], there)
        task = self._contexts[address].copy().run(asyncio.ensure_future, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return here

    async def register(self, gateway: str, message: Register) -> None:
        await asyncio.sleep(self._random.uniform(*self._latency))
        await self._reach(message.address, gateway)
        on_register = self._accept.get(gateway, ({}, None))[1]
        if on_register is None:
            raise StreamClosed(gateway)
        context = self._contexts[gateway].copy()
        asyncio.get_running_loop().call_soon(on_register, decode_register(encode_register(message)), context=context)

    async def _reach(self, source: str, target: str) -> None:
        if (source, target) in self.cuts or (target, source) in self.cuts:
            await asyncio.sleep(DIAL_SECONDS)
            raise StreamClosed(target)


@dataclass(frozen=True, slots=True)
class WriteFault:
    """A fault that one of the next writes meets."""

    kind: str  # flip | torn | twice | lost | late
    seconds: float  # late: by how much


@dataclass(slots=True)
class NodeFabric(Fabric):
    faults: deque[WriteFault] = field(default_factory=deque)
    spoiled: Callable[[WriteFault, Write], None] = lambda fault, write: None  # called when a write meets a fault

    def meet(self, write: Write) -> WriteFault | None:
        """The fault that this write meets on its arrival. Only one-sided writes are late: frames keep their order."""
        if self.faults and (write.target.one_sided or self.faults[0].kind != "late"):
            fault = self.faults.popleft()
            self.spoiled(fault, write)
            return fault
        return None


class NodeReceiver(MemoryReceiver):
    """Frames are handled by the receiving node; a one-sided write is the work of the writing node."""

    def __init__(self, fabric: NodeFabric, pool: Pool, incarnation: int, *, name: str, one_sided: bool) -> None:
        super().__init__(fabric, pool, incarnation, name=name, one_sided=one_sided)
        self._context, self._faults = copy_context(), fabric
        self._met: set[Write] = set()  # those that have arrived once

    def proceed(self, write: Write) -> None:
        if self.one_sided:
            self._arrive(write)
        else:
            asyncio.get_running_loop().call_soon(self._arrive, write, context=self._context.copy())

    def _arrive(self, write: Write) -> None:
        begun = write in self._met or write.into is not None
        fault = None if begun else self._faults.meet(write)
        if fault is None:
            self._met.discard(write)
            super().proceed(write)
        elif fault.kind == "lost":
            self._finish(write)
        elif fault.kind == "late":
            self._met.add(write)
            asyncio.get_running_loop().call_later(fault.seconds, self._arrive, write)
        elif fault.kind == "flip":
            _flip(write)
            super().proceed(write)
        elif fault.kind == "torn":
            half = len(write.payload) // 2
            write.payload = write.payload[:half] + bytes(len(write.payload) - half)
            super().proceed(write)
        else:  # twice
            loop = asyncio.get_running_loop()
            again = replace(write, done=loop.create_future())
            self._met.add(write)
            super().proceed(again)
            if not self.one_sided and self._faults.random.random() < 0.5:
                _flip(write)  # every frame is checked; a one-sided write is checked once, with Written
            loop.call_later(self._faults.delay(), self._arrive, write)


def _flip(write: Write) -> None:
    write.payload = bytes([write.payload[0] ^ 0x40]) + write.payload[1:]


@dataclass(frozen=True, slots=True)
class NodeTransport(MemoryTransport):
    async def receive(self, pool: Pool, incarnation: int) -> MemoryReceiver:
        assert isinstance(self.fabric, NodeFabric)
        return NodeReceiver(self.fabric, pool, incarnation, name=self.name, one_sided=self.one_sided)
