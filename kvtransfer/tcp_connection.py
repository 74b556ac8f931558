"""One TCP connection at the receiver: a greeting, then portions of frames (kvtransfer/portion_reader.py).

Its bytes come over a wire of kvtransfer/tcp_wires.py, plain or with TLS."""

import asyncio
from collections import Counter
from typing import Protocol

from kvtransfer.frame_landings import FrameLandings
from kvtransfer.frames import GREETING_BYTES, Greeting, Malformed, Welcome
from kvtransfer.portion_reader import PortionReader
from mesh.messages.page_fit import transport_obstacle


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


class Wire(Protocol):
    """The bytes of one connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """End it behind what was written."""

    def abort(self) -> None:
        """End it at once."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class TcpConnection:
    def __init__(self, owner: ConnectionOwner, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        self.greeted = False
        self.wire = wire
        self._owner = owner
        self._greeting = memoryview(bytearray(GREETING_BYTES))
        self._have = 0  # bytes of it
        self._reader: PortionReader | None = None  # once it has greeted
        self._refused = False
        self._gone: asyncio.Future[None] = loop.create_future()
        self._late = loop.call_later(owner.handshake_seconds, self.refuse, "late")

    def begin(self) -> None:
        """Its wire can be read from now on."""
        self._owner.joined(self)

    def buffers(self) -> list[memoryview]:
        """The memory that the next bytes go into."""
        if self._refused:
            return [self._owner.landings.sink]
        return self._reader.buffers() if self._reader is not None else [self._greeting[self._have :]]

    @property
    def certain_bytes(self) -> int:
        """The number of bytes that follow for certain once the next one is there."""
        if self._refused:
            return 1
        return self._reader.certain_bytes if self._reader is not None else len(self._greeting) - self._have

    def took(self, count: int) -> None:
        if self._refused:
            return
        if self._reader is not None:
            try:
                self._reader.took(count)
            except Malformed:
                self.refuse("frame")
        else:
            self._have += count
            if self._have == GREETING_BYTES:
                self._greet()

    def sink(self, ticket: bytes) -> None:
        """The landing of this ticket ended: the rest of its frames that are being received goes into the sink."""
        if self._reader is not None:
            self._reader.sink(ticket)

    def cut(self) -> "asyncio.Future[None]":
        """Close at once. The future is done when the event loop has let go of the connection."""
        self._refused = True
        self.wire.abort()
        return self._gone

    def lost(self) -> None:
        """The wire has ended."""
        self._late.cancel()
        if self._reader is not None:
            self._reader.drop()
        self._owner.left(self)
        self._gone.set_result(None)

    def refuse(self, reason: str) -> None:
        """End the connection and count it under this reason."""
        self._owner.refused[reason] += 1
        self._refused = True  # further bytes of this connection are ignored
        self.wire.abort()

    def _greet(self) -> None:
        pool = self._owner.landings.pool
        try:
            greeting = Greeting.unpack(bytes(self._greeting))
        except Malformed:
            return self.refuse("malformed")
        if not self._owner.knows(greeting):
            return self.refuse("token")
        accepted = not transport_obstacle("tcp", greeting.shape, pool.shape)
        self.wire.write(Welcome(accepted, self._owner.incarnation, pool.pages, pool.shape).pack())
        self._late.cancel()
        self.greeted, self._reader = True, PortionReader(self._owner.landings)
        self._owner.greeted(self)
        if not accepted:  # the writer reads the reason before the connection closes
            self._owner.refused["shape"] += 1
            self._refused = True
            self.wire.close()
