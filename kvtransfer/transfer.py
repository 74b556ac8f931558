"""How pages move: the two halves every transport implements, and the few words they share.

Step 4 of a request's life: prefill's `Writer` copies spans (some layers of one page) into the landing that decode's
`Receiver` opened; the control messages around it are kv.v1's and not ours. One lifecycle on both sides:
register (a pool) -> connect -> write -> complete -> close.

Invariants: a receiver lets bytes into a page only between `open` and `close` of the ticket they name (two-sided), or
says that it cannot (`one_sided`), and then the owner of the pages keeps them in quarantine until `silent` says that
this writer is gone. A write is complete for its sender when the source may change (its buffer was read)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class TransferError(Exception):
    """The way to the peer is broken; nothing more can be written over it."""


@dataclass(frozen=True, slots=True)
class PageShape:
    """What two pools must have in common for bytes to move as they are."""

    segments: tuple[tuple[int, int], ...]  # (layers, bytes of each): the model's, and behind them its draft's
    layout: str  # name of the inner tile layout, and of the draft if there is one

    @property
    def layers(self) -> int:
        """Of all segments; a layer's index counts through them."""
        return sum(layers for layers, _ in self.segments)

    @property
    def page_bytes(self) -> int:
        return self.before(self.layers)

    def before(self, layer: int) -> int:
        """Bytes of a page in front of this layer."""
        total = 0
        for layers, layer_bytes in self.segments:
            total += min(layer, layers) * layer_bytes
            layer -= min(layer, layers)
        return total

    def place(self, first_layer: int, layers: int) -> tuple[int, int]:
        """Offset and length in bytes of these layers of a page; they may reach across a segment's end."""
        offset = self.before(first_layer)
        return offset, self.before(first_layer + layers) - offset


@dataclass(frozen=True, slots=True)
class Span:
    """Some layers of one page."""

    index: int  # which page of the prompt
    source: int  # page id in the writer's pool
    target: int  # page id in the receiver's pool
    first_layer: int
    layers: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Two-sided: a frame was completely received into the page of an open landing."""

    ticket: bytes
    index: int
    first_layer: int
    layers: int
    round: int
    checksum: int  # as the sender computed it; the receiver's owner compares


class Writer(Protocol):
    """Prefill's way into one decode worker's pool, for the length of one session."""

    name: str  # of the transport
    one_sided: bool
    bytes_written: int

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        """Copy the spans; returns their checksums once the source may change (one-sided: once the bytes are there).
        TransferError when the way is broken. Writes of one ticket are carried out in order."""

    def close(self) -> None: ...


class Receiver(Protocol):
    """Decode's side: lets writers reach its pool."""

    name: str
    one_sided: bool
    refused: Counter[str]  # connections that came to nothing, by reason

    def handle(self, writer: int) -> bytes:
        """What the writer with this incarnation needs to connect; belongs to this incarnation of the pool."""

    def open(self, ticket: bytes, pages: dict[int, int], arrived: Callable[[Arrived], None]) -> None:
        """Let frames of this ticket into these pages (page index -> page id)."""

    def close(self, ticket: bytes) -> None:
        """The landing ended, in whatever way: later frames, and the rest of a half-received one, go into a sink."""

    async def silent(self, writer: int, seconds: float) -> bool:
        """Proof that this writer's process can write no more; polls at most so long. Two-sided: always true."""

    def kill(self, writer: int) -> bool:
        """Kill a silent writer of this host. False where that is not possible or not permitted."""

    async def aclose(self) -> None: ...


class Pool(Protocol):
    """The memory under a page pool, as transports see it."""

    shape: PageShape
    pages: int

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        """Writable bytes of a span."""

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        """Position-keyed 64-bit multiply sum; additive over layer spans of a page."""

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        """The same of several pages: a GPU is asked once for all."""


class Transport(Protocol):
    """One way to move pages, as both tiers hold it."""

    name: str

    def available(self) -> str:
        """Empty when usable here, else the reason why not, for people."""

    async def receive(self, pool: Pool, incarnation: int) -> Receiver: ...

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> Writer:
        """`incarnation` is the writer's own. TransferError when the receiver cannot be reached."""
