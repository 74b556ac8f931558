"""Both kinds of transport inside one process, for the simulation, with every danger of the real ones.

One-sided: a write may land long after its session ended, unless its process is dead. Two-sided: frames arrive in order
and in two halves; the ticket decides about the page when the first half comes. A fabric connects all pools of a
simulated cluster; tests hold writes back, lose them and damage them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from kvtransfer.frame_landings import FrameLanding
from kvtransfer.span_reader import Converted
from kvtransfer.transfer import Arrived, FrameBegins, Pool, Span, TransferError, every_frame
from mesh.messages.page_fit import page_obstacle
from mesh.messages.page_shape import PageShape

_MASK = (1 << 64) - 1


class MemoryPool:
    """Pages in a bytearray."""

    def __init__(self, shape: PageShape, pages: int) -> None:
        self.shape, self.pages = shape, pages
        self.memory = bytearray(shape.page_bytes * pages)
        self._page_bytes, self._places = shape.page_bytes, dict[tuple[int, int], tuple[int, int]]()

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        place = self._places.get((first_layer, layers))
        if place is None:
            place = self._places[first_layer, layers] = self.shape.place(first_layer, layers)
        begin = page * self._page_bytes + place[0]
        return memoryview(self.memory)[begin : begin + place[1]]

    def views(self, pages: Sequence[int], first_layer: int, layers: int) -> list[memoryview]:
        return [self.view(page, first_layer, layers) for page in pages]

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        return _checksum(self.view(page, first_layer, layers), self.shape.before(first_layer))

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        return tuple(self.checksum(page, first_layer, layers) for page in pages)

    def clear(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.view(page, 0, self.shape.layers)[:] = bytes(self._page_bytes)


def _checksum(data: memoryview, first_byte: int) -> int:
    begin = first_byte // 8
    return sum(word * _key(begin + i) for i, word in enumerate(data.cast("Q"))) & _MASK


def _key(position: int) -> int:
    mixed = (position + 1) * 0x9E3779B97F4A7C15 & _MASK
    return (mixed ^ mixed >> 29) | 1


@dataclass(slots=True, eq=False)
class Write:
    """One span on its way from a writer to a receiver."""

    writer: int
    ticket: bytes
    span: Span
    round: int
    payload: bytes
    checksum: int
    target: "MemoryReceiver"
    done: asyncio.Future[None]
    into: memoryview | None = None  # two-sided: memory that took the first half
    page: int | None = None  # page id of that memory; None: the sink


Held = Callable[[Write], bool]


def still_wanted(index: int, pages: Mapping[int, int]) -> bool:
    """Rule [sink]: the second half of a frame goes into its page only while an open landing has that page. Otherwise
    those bytes land in a page that another request may own by then."""
    return index in pages


@dataclass(slots=True)
class Fabric:
    """Connects all pools: it knows which processes are dead, which writes are on their way and which are held back."""

    random: Random
    delay_seconds: tuple[float, float] = (0.0001, 0.002)
    dead: set[int] = field(default_factory=set)
    holding: list[Held] = field(default_factory=list)
    waiting: list[Write] = field(default_factory=list)
    receivers: dict[bytes, "MemoryReceiver"] = field(default_factory=dict)
    on_kill: Callable[[int], bool] = lambda writer: False
    touched: Callable[[Write, int], None] = lambda write, page: None  # called for every page that a write changes
    spoil: int = 0  # how many of the next writes arrive with a flipped bit

    def delay(self) -> float:
        return self.random.uniform(*self.delay_seconds)

    def held(self, write: Write) -> bool:
        return any(held(write) for held in self.holding)

    def hold(self, held: Held) -> Callable[[], None]:
        """Keep writes back until the returned function is called."""
        self.holding.append(held)

        def release() -> None:
            self.holding.remove(held)
            waiting, self.waiting = self.waiting, []
            for write in waiting:
                write.target.proceed(write)

        return release

    def died(self, writer: int) -> None:
        """The process of this writer is dead; its writes that are still held back never land."""
        self.dead.add(writer)
        self.waiting = [write for write in self.waiting if write.writer != writer]


class MemoryReceiver:
    def __init__(self, fabric: Fabric, pool: Pool, incarnation: int, *, name: str, one_sided: bool) -> None:
        self.refused: Counter[str] = Counter()  # stays empty: there is no handshake
        self.name, self.one_sided, self.pool = name, one_sided, pool
        self.fabric = fabric
        self._handle = f"{name} {incarnation:x}".encode()
        self._open: dict[bytes, FrameLanding] = {}
        self._sink = bytearray(pool.shape.page_bytes)
        fabric.receivers[self._handle] = self

    def handle(self, writer: int) -> bytes:
        return self._handle

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        self._open[ticket] = FrameLanding(pages, arrived, begins)

    def close(self, ticket: bytes) -> None:
        self._open.pop(ticket, None)

    async def silent(self, writer: int, seconds: float) -> bool:
        return not self.one_sided or writer in self.fabric.dead

    def kill(self, writer: int) -> bool:
        return self.fabric.on_kill(writer)

    async def aclose(self) -> None:
        self.fabric.receivers.pop(self._handle, None)

    # ---- what the fabric calls

    def proceed(self, write: Write) -> None:
        """Hold, drop or carry out the next part of a write."""
        if self.fabric.held(write):
            self.fabric.waiting.append(write)
        elif write.writer in self.fabric.dead or self._handle not in self.fabric.receivers:
            return
        elif self.one_sided:
            self.fabric.touched(write, write.span.target)
            self.pool.view(write.span.target, write.span.first_layer, write.span.layers)[:] = write.payload
            self._finish(write)
        elif write.into is None:
            self._first_half(write)
        else:
            self._second_half(write)

    def _first_half(self, write: Write) -> None:
        landing, span = self._open.get(write.ticket), write.span
        page = landing.pages.get(span.index) if landing is not None else None
        if landing is not None and page is not None and not landing.begins(span.index, span.first_layer, span.layers):
            page = None
        into = memoryview(self._sink)[: len(write.payload)]
        if page is not None:
            into = self.pool.view(page, span.first_layer, span.layers)
        half = len(write.payload) // 2
        into[:half] = write.payload[:half]
        write.into, write.page = into, page
        asyncio.get_running_loop().call_later(self.fabric.delay(), self.proceed, write)

    def _second_half(self, write: Write) -> None:
        landing, span = self._open.get(write.ticket), write.span
        half, into = len(write.payload) // 2, write.into
        if into is not None and write.page is not None and still_wanted(span.index, landing.pages if landing else {}):
            self.fabric.touched(write, write.page)
            into[half:] = write.payload[half:]
        if landing is not None and write.page is not None:
            landing.arrived(
                Arrived(write.ticket, span.index, span.first_layer, span.layers, write.round, write.checksum)
            )
        self._finish(write)

    def _finish(self, write: Write) -> None:
        if not write.done.done():
            write.done.set_result(None)


class MemoryWriter:
    def __init__(self, target: MemoryReceiver, pool: Pool, incarnation: int) -> None:
        self.name, self.one_sided, self.bytes_written = target.name, target.one_sided, 0
        self._target, self._incarnation, self.shape = target, incarnation, target.pool.shape
        self._spans = Converted(pool, self.shape) if pool.shape != self.shape else None
        self._pool = pool
        self._closed = False
        self._last_seconds = 0.0  # two-sided: arrival of the last frame, which no later frame overtakes

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        loop, fabric, writes = asyncio.get_running_loop(), self._target.fabric, list[Write]()
        if self._closed:
            raise TransferError("the session is over")
        for span in spans:
            payload, checksum = self._read(span)
            if fabric.spoil > 0:
                fabric.spoil -= 1
                payload = bytes([payload[0] ^ 0x40]) + payload[1:]
            write = Write(self._incarnation, ticket, span, round, payload, checksum, self._target, loop.create_future())
            writes.append(write)
            self._last_seconds = max(self._last_seconds, loop.time()) + fabric.delay() / len(spans)
            at = loop.time() + fabric.delay() if self.one_sided else self._last_seconds
            loop.call_at(at, self._arrive, write)
        self.bytes_written += sum(len(write.payload) for write in writes)
        if self.one_sided:
            await asyncio.gather(*(write.done for write in writes))
        return tuple(write.checksum for write in writes)

    def _read(self, span: Span) -> tuple[bytes, int]:
        if self._spans is None:
            place = span.source, span.first_layer, span.layers
            return bytes(self._pool.view(*place)), self._pool.checksum(*place)
        payload = self._spans.convert(span).tobytes()
        return payload, _checksum(memoryview(payload), self.shape.before(span.first_layer))

    def _arrive(self, write: Write) -> None:
        if self.one_sided or not self._closed:
            self._target.proceed(write)

    def close(self) -> None:
        """No further writes. A one-sided write on its way still lands: the end of a session unmaps no memory."""
        self._closed = True


@dataclass(frozen=True, slots=True)
class MemoryTransport:
    fabric: Fabric
    name: str
    one_sided: bool

    def available(self) -> str:
        return ""

    async def receive(self, pool: Pool, incarnation: int) -> MemoryReceiver:
        return MemoryReceiver(self.fabric, pool, incarnation, name=self.name, one_sided=self.one_sided)

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> MemoryWriter:
        target = self.fabric.receivers.get(handle)
        if target is None:
            raise TransferError("no such pool")
        if why := page_obstacle(pool.shape, target.pool.shape):
            raise TransferError(why)
        return MemoryWriter(target, pool, incarnation)
