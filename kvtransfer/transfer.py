"""How pages move: the two halves that every transport implements, and the values they exchange.

Step 4 of a request's life: prefill's `Writer` copies spans (some layers of one page) into the landing that decode's
`Receiver` has opened. The messages around the copy travel over kv.v1, and no transport sees them. Both
halves live through the same stages: register (a pool), connect, write, complete, close.

A two-sided transport lets bytes into a page only between `open` and `close` of the ticket that the bytes name. A
one-sided transport cannot, because its writers reach decode's memory by themselves: after `close` decode keeps the
pages in quarantine until `silent` proves that the writer can write no more."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mesh.messages.page_shape import PageShape


class TransferError(Exception):
    """The way to the peer is broken; nothing more can be written over it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some layers of one page of the receiver."""

    index: int  # which page of the prompt, in pages of the receiver's size
    source: int  # page id in the writer's pool: of the page that holds the first token of the receiver's page
    target: int  # page id in the receiver's pool
    first_layer: int
    layers: int
    behind: tuple[int, ...] = ()  # page ids in the writer's pool of the further pages that it takes, where sizes differ
    bands: int = 1  # pages of the same tokens, which `index` counts one after the other

    @property
    def stretch(self) -> int:
        """Index of its tokens among those of the prompt, in pages of the receiver's size."""
        return self.index // self.bands


class Arrived(NamedTuple):
    """Two-sided transports: all bytes of one span are in the page of an open landing."""

    ticket: bytes
    page: int  # index of the prompt's page
    first_layer: int
    layers: int
    round: int
    checksum: int  # as the writer computed it; decode compares it with the page


FrameBegins = Callable[[int, int, int], bool]  # (page index, first layer, layers) -> whether its bytes may land


def every_frame(index: int, first_layer: int, layers: int) -> bool:
    """All frames of the ticket may land."""
    return True


class Writer(Protocol):
    """Prefill's way into one decode worker's pool. It lives as long as one session."""

    name: str  # transport's name
    one_sided: bool
    bytes_written: int
    shape: PageShape  # shape of the receiver's pages

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        """Copy the spans, converted where the two pools' pages differ, and return the checksums of the receiver's
        bytes. When it returns the source pages may change; one-sided, the bytes are in decode's pages. TransferError
        when the connection is broken. Writes of one ticket keep their order."""

    def close(self) -> None:
        """End the connection; idempotent. A write that waits gets a TransferError."""


class Receiver(Protocol):
    """Decode's half: it lets the writers of many prefill workers reach one pool."""

    name: str
    one_sided: bool
    refused: Counter[str]  # connections that the receiver turned away, by reason

    def handle(self, writer: int) -> bytes:
        """Bytes that the writer with this incarnation needs to connect; a secret between the two processes."""

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        """A landing begins: frames of this ticket may go into these pages (page index -> page id). The receiver calls
        `begins` before the first byte of a frame goes into its page, and `arrived` for each frame that is complete. A
        frame goes into no page, and is not reported, where `begins` returns False."""

    def close(self, ticket: bytes) -> None:
        """The landing ended, in whatever way. Two-sided: later frames, and the rest of a frame that is half received,
        reach no page (rule [sink])."""

    async def silent(self, writer: int, seconds: float) -> bool:
        """True is proof that this writer can write no more. Waits for the proof at most `seconds`. A two-sided
        receiver needs none and returns True. A receiver whose writers hold a key (RDMA) destroys it when it may wait,
        because its caller does so when the session is over; with 0 seconds it only looks."""

    def kill(self, writer: int) -> bool:
        """Kill the process of this writer. False where that is not possible or not permitted."""

    async def aclose(self) -> None:
        """Stop listening and end all connections."""


class Pool(Protocol):
    """The memory of one worker's pages, as transports see it."""

    shape: PageShape
    pages: int

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        """Writable bytes of a span."""

    def views(self, pages: Sequence[int], first_layer: int, layers: int) -> list[memoryview]:
        """`view` of the same layers of several pages."""

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        """Position-keyed 64-bit multiply sum. The sums of a page's layer groups add up to the sum of the page."""

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        """`checksum` of the same layers of several pages, in one call."""

    def clear(self, pages: Sequence[int]) -> None:
        """Make every byte of these pages zero. When it returns that is done, on a GPU too."""


class Transport(Protocol):
    """One way to move pages. Both tiers hold one object per transport that works on their host."""

    name: str

    def available(self) -> str:
        """Empty when the transport works here, else a text with the reason why it does not and what to do."""

    async def receive(self, pool: Pool, incarnation: int) -> Receiver:
        """Listen for writers into this pool; `incarnation` is the receiving process's own."""

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> Writer:
        """Reach the receiver whose handle this is; `incarnation` is the writing process's own. TransferError when that
        fails."""
