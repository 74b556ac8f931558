"""A connection of TCP receives portion after portion: the frames of each, and then their bytes.

Step 4 of a request's life. `buffers` names the memory that the next bytes go into: room for a portion's frames, then
the pages of its spans in their order, or the sink where a frame has no page. Whoever reads fills them from the first on
and says in `took` how many bytes came. `sink` revokes the pages when the ticket's landing ends before the bytes."""

from collections import deque
from itertools import starmap

from kvtransfer.frame_landings import FrameLanding, FrameLandings
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, Frame, portion_bytes, unpack_portion

MOST_TCP_FRAMES = 64  # of one portion


class FrameBytes:
    """A frame whose bytes are being received, or come next."""

    __slots__ = ("frame", "landing", "left", "page")

    def __init__(self, frame: Frame, landing: FrameLanding | None, page: memoryview) -> None:
        self.frame = frame
        self.landing = landing  # None: the bytes go into the sink
        self.page = page  # the rest of the page, which the bytes fill
        self.left = frame.length  # bytes that are still to come


class PortionReader:
    def __init__(self, landings: FrameLandings) -> None:
        self._landings = landings
        self._none = memoryview(b"")
        self._head = memoryview(bytearray(COUNT_BYTES + MOST_TCP_FRAMES * FRAME_BYTES))
        self._have, self._wanted = 0, COUNT_BYTES  # bytes in it, and those that are read next up to there
        self._coming = deque[FrameBytes]()

    def buffers(self) -> list[memoryview]:
        if not self._coming:
            return [self._head[self._have : self._wanted]]
        found, sink = list[memoryview](), self._landings.sink
        for coming in self._coming:
            found.append(coming.page if coming.landing is not None else sink[: coming.left])
            if coming.landing is None and coming.left > len(sink):
                break
        return found

    def took(self, count: int) -> None:
        """The buffers have so many bytes more. `Malformed` when they are no frames."""
        if not self._coming:
            self._have += count
            if self._have == self._wanted:
                self._parse()
            return
        while count and self._coming:
            count -= self._fill(count)

    def sink(self, ticket: bytes) -> None:
        """The landing of this ticket ended: the rest of its frames in this portion goes into the sink."""
        for coming in self._coming:
            if coming.frame.ticket == ticket:
                coming.landing, coming.page = None, self._none

    def drop(self) -> None:
        """The connection is gone: it holds no page."""
        self._coming.clear()

    def _fill(self, count: int) -> int:
        """The next frame has at most so many bytes more; returns how many it took."""
        coming = self._coming[0]
        took = min(count, coming.left)
        coming.left -= took
        if coming.left:
            if coming.landing is not None:
                coming.page = coming.page[took:]
            return took
        self._coming.popleft()
        if coming.landing is not None:
            self._landings.complete(coming.frame, coming.landing)
        else:
            self._landings.discarded_bytes += coming.frame.length
        return took

    def _parse(self) -> None:
        if self._wanted == COUNT_BYTES:
            self._wanted += portion_bytes(bytes(self._head[:COUNT_BYTES]), MOST_TCP_FRAMES)
            return
        frames = unpack_portion(bytes(self._head[COUNT_BYTES : self._wanted]), self._landings.pool.shape)
        self._coming.extend(starmap(FrameBytes, self._landings.find(frames)))
        self._have, self._wanted = 0, COUNT_BYTES
