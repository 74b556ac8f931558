"""The open landings of a two-sided receiver (TCP, NCCL): the place in the pool that a frame's bytes belong to.

Step 4 of a request's life. A frame names a ticket and a page of its prompt; only while the landing of that ticket is
open is there a page for it. Bytes of all other frames are read and thrown away."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvtransfer.portions import Frame
from kvtransfer.transfer import Arrived, FrameBegins, Pool, every_frame

_SINK_BYTES = 256 * 1024
_NOWHERE = memoryview(b"")
_ARRIVED = len(Arrived._fields)  # a frame begins with the same fields
assert Frame._fields[:_ARRIVED] == Arrived._fields


@dataclass(frozen=True, slots=True, eq=False)
class FrameLanding:
    """The pages that one ticket's frames may land in."""

    pages: dict[int, int]  # page index -> page id
    arrived: Callable[[Arrived], None]
    begins: FrameBegins


class FrameLandings:
    """All open landings of one receiver, and the sink: memory for bytes that belong to no open landing."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.sink = memoryview(bytearray(_SINK_BYTES))
        self.discarded_bytes = 0
        self._open: dict[bytes, FrameLanding] = {}

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        self._open[ticket] = FrameLanding(dict(pages), arrived, begins)

    def close(self, ticket: bytes) -> None:
        self._open.pop(ticket, None)

    def wants(self, frame: Frame) -> FrameLanding | None:
        """The open landing that this frame belongs to now."""
        landing = self._open.get(frame.ticket)
        return landing if landing is not None and frame.page in landing.pages else None

    def begin(self, frame: Frame) -> FrameLanding | None:
        """The open landing whose page takes the bytes of this frame, which begins now."""
        landing = self._open.get(frame.ticket)
        if landing is None or frame.page not in landing.pages:
            return None
        return landing if landing.begins(frame.page, frame.first_layer, frame.layers) else None

    def find(self, frames: Sequence[Frame]) -> Iterator[tuple[Frame, FrameLanding | None, memoryview]]:
        """Where the bytes of these frames go, which begin now; without a landing: into the sink."""
        for layers, same in groupby(((frame, self.begin(frame)) for frame in frames), _layers):
            found = list(same)
            pages = [landing.pages[frame.page] for frame, landing in found if landing is not None]
            views = iter(self.pool.views(pages, *layers))
            for frame, landing in found:
                yield frame, landing, _NOWHERE if landing is None else next(views)

    def complete(self, frame: Frame, landing: FrameLanding) -> None:
        """All bytes of a frame are in its page. Reports it if that very landing is still open."""
        if self._open.get(frame.ticket) is landing:
            landing.arrived(Arrived._make(frame[:_ARRIVED]))


def _layers(found: tuple[Frame, FrameLanding | None]) -> tuple[int, int]:
    return found[0].first_layer, found[0].layers
