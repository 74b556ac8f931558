"""One TCP connection at the receiver: a greeting, then header, bytes, header, bytes ...

`get_buffer` returns the memory that the next bytes go into: the header's buffer, the page itself, or the sink. The
complete header decides between page and sink; `sink` revokes the page when the ticket's landing ends before the bytes.
Short frames are read several at a time and copied into their pages: two calls of the loop per frame cost more."""

import asyncio
from collections import Counter
from typing import Protocol, cast

from kvtransfer.frame_landings import FrameLanding, FrameLandings
from kvtransfer.frames import FRAME_BYTES, GREETING_BYTES, Frame, Greeting, Malformed, Welcome
from mesh.page_fit import transport_obstacle

_AHEAD_BYTES = 64 * 1024


class ConnectionOwner(Protocol):
    """The receiver, as its connections see it."""

    refused: Counter[str]
    incarnation: int
    landings: FrameLandings

    @property
    def handshake_seconds(self) -> float: ...

    def joined(self, connection: "TcpConnection") -> None: ...

    def greeted(self, connection: "TcpConnection") -> None:
        """It has shown the token of a writer."""

    def left(self, connection: "TcpConnection") -> None: ...

    def knows(self, greeting: Greeting) -> bool: ...


class TcpConnection(asyncio.BufferedProtocol):
    def __init__(self, owner: ConnectionOwner) -> None:
        self.greeted = False
        self._owner = owner
        self._landings = owner.landings
        self._ahead = memoryview(bytearray(GREETING_BYTES))  # the greeting; then headers and what comes with them
        self._have = 0  # bytes in that buffer
        self._wanted = GREETING_BYTES  # bytes to read into it before it is parsed
        self._frame: Frame | None = None  # the frame whose bytes are being received
        self._left = 0  # bytes of that frame that are still to come
        self._landing: FrameLanding | None = None  # the landing that the bytes belong to; None: they go into the sink
        self._page = self._ahead[:0]  # the rest of the page, which those bytes fill
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._gone: asyncio.Future[None] = loop.create_future()
        self._late = loop.call_later(self._owner.handshake_seconds, self.refuse, "late")
        self._owner.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._late.cancel()
        self._page = self._ahead[:0]  # a dead connection holds no page
        self._frame = self._landing = None
        self._owner.left(self)
        self._gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None and not self._refused:
            return self._ahead[self._have : self._wanted]
        return self._page if self._landing is not None else self._landings.sink[: self._left or None]

    def buffer_updated(self, count: int) -> None:
        if self._refused:
            return
        if self._frame is not None:
            self._took(self._frame, count)
        else:
            self._have += count
            if self.greeted:
                self._parse()
            elif self._have == GREETING_BYTES:
                self._greet()

    def sink(self, ticket: bytes) -> None:
        """The landing of this ticket ended: the rest of a frame of it that is being received goes into the sink."""
        if self._frame is not None and self._frame.ticket == ticket:
            self._landing, self._page = None, self._ahead[:0]

    def cut(self) -> "asyncio.Future[None]":
        """Close at once. The future is done when the event loop has let go of the connection."""
        self._refused = True
        self._transport.abort()
        return self._gone

    # ---- greeting, headers, bytes

    def _greet(self) -> None:
        pool = self._landings.pool
        try:
            greeting = Greeting.unpack(bytes(self._ahead[:GREETING_BYTES]))
        except Malformed:
            return self.refuse("malformed")
        if not self._owner.knows(greeting):
            return self.refuse("token")
        accepted = not transport_obstacle("tcp", greeting.shape, pool.shape)
        welcome = Welcome(accepted, self._owner.incarnation, pool.pages, pool.shape)
        self._transport.write(welcome.pack())
        self._late.cancel()
        self.greeted = True
        self._owner.greeted(self)
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._have, self._wanted = 0, FRAME_BYTES
        if not welcome.accepted:  # the writer reads the reason before the connection closes
            self._owner.refused["shape"] += 1
            self._refused = True
            self._transport.close()

    def _parse(self) -> None:
        """Take whole headers, and the page bytes behind them, off the buffer that was read ahead."""
        at = 0
        while self._have - at >= FRAME_BYTES and not self._refused:
            try:
                frame = Frame.unpack(bytes(self._ahead[at : at + FRAME_BYTES]), self._landings.pool.shape)
            except Malformed:
                return self.refuse("frame")
            at += FRAME_BYTES
            self._wanted = _AHEAD_BYTES if frame.length < _AHEAD_BYTES else FRAME_BYTES
            self._frame, self._left = frame, frame.length
            self._landing, self._page = self._landings.find(frame) or (None, self._ahead[:0])
            if count := min(self._have - at, self._left):
                if self._landing is not None:
                    self._page[:count] = self._ahead[at : at + count]
                at += count
                self._took(frame, count)
        self._have -= at
        self._ahead[: self._have] = self._ahead[at : at + self._have]

    def _took(self, frame: Frame, count: int) -> None:
        """`count` more bytes of this frame have been received."""
        landing = self._landing
        self._left -= count
        self._page = self._page[count:] if landing is not None else self._ahead[:0]
        if self._left == 0:
            self._frame = self._landing = None
            if landing is not None:
                self._landings.complete(frame, landing)
            else:
                self._landings.discarded_bytes += frame.length

    def refuse(self, reason: str) -> None:
        """End the connection and count it under this reason."""
        self._owner.refused[reason] += 1
        self._refused = True  # further bytes of this connection are ignored
        self._transport.abort()
