"""A connection of TCP receives portion after portion: the frames of each, and then their bytes.

Step 4 of a request's life. `buffers` names the memory that the next bytes go into: room for a portion's frames, then
the pages of its spans in their order, or the sink where a frame has no page, and behind them room for the beginning of
the next portion, so that one read takes both. The caller fills them from the first on and says in `took` how many
bytes came. `sink` revokes the pages when the ticket's landing ends before the bytes."""

from collections import deque
from itertools import starmap

from kvtransfer.frame_landings import FrameLanding, FrameLandings
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, Frame, portion_bytes, unpack_portion

MOST_TCP_FRAMES = 64  # frames in one portion, at most
_LEAST_HEAD_BYTES = COUNT_BYTES + FRAME_BYTES  # every portion has a frame


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
        self._have, self._wanted = 0, _LEAST_HEAD_BYTES  # bytes in it, and those that are read next up to there
        self._coming = deque[FrameBytes]()
        self._left = 0  # bytes of these frames

    @property
    def certain_bytes(self) -> int:
        """The number of bytes that follow for certain once the next one is there."""
        return self._left or self._wanted - self._have

    def buffers(self) -> list[memoryview]:
        found, sink = list[memoryview](), self._landings.sink
        for coming in self._coming:
            found.append(coming.page if coming.landing is not None else sink[: coming.left])
            if coming.landing is None and coming.left > len(sink):
                return found
        found.append(self._head[self._have : self._wanted])
        return found

    def took(self, count: int) -> None:
        """The buffers have so many bytes more. `Malformed` when they are no frames."""
        coming, complete = self._coming, self._complete
        while coming and count >= coming[0].left:
            count -= coming[0].left
            complete(coming.popleft())
        if coming:
            return self._fill(coming[0], count)
        self._have += count
        if self._have >= COUNT_BYTES and self._wanted == _LEAST_HEAD_BYTES:
            self._wanted = COUNT_BYTES + portion_bytes(bytes(self._head[:COUNT_BYTES]), MOST_TCP_FRAMES)
        if self._have == self._wanted:
            self._parse()

    def sink(self, ticket: bytes) -> None:
        """The landing of this ticket ended: the rest of its frames in this portion goes into the sink."""
        for coming in self._coming:
            if coming.frame.ticket == ticket:
                coming.landing, coming.page = None, self._none

    def drop(self) -> None:
        """The connection is gone: it holds no page."""
        self._coming.clear()
        self._left = 0

    def _complete(self, coming: FrameBytes) -> None:
        """The rest of this frame's bytes is there."""
        self._left -= coming.left
        if coming.landing is not None:
            self._landings.complete(coming.frame, coming.landing)
        else:
            self._landings.discarded_bytes += coming.frame.length

    def _fill(self, coming: FrameBytes, count: int) -> None:
        """A part of this frame's bytes is there."""
        coming.left -= count
        self._left -= count
        if coming.landing is not None:
            coming.page = coming.page[count:]

    def _parse(self) -> None:
        frames = unpack_portion(bytes(self._head[COUNT_BYTES : self._wanted]), self._landings.pool.shape)
        self._coming.extend(starmap(FrameBytes, self._landings.find(frames)))
        self._left = sum(frame.length for frame in frames)
        self._have, self._wanted = 0, _LEAST_HEAD_BYTES
