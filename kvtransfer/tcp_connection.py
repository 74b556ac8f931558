"""One TCP connection at the receiver: a greeting, then portions of frames (kvtransfer/portion_reader.py).

A plain connection is read from its socket, since one such read fills as many pages as there are bytes for. With TLS
the event loop decrypts, and gives one page at a time."""

import asyncio
import os
import socket
from collections import Counter
from typing import Protocol, cast

from kvtransfer.frame_landings import FrameLandings
from kvtransfer.frames import GREETING_BYTES, Greeting, Malformed, Welcome
from kvtransfer.portion_reader import PortionReader
from mesh.page_fit import transport_obstacle

_READS = 4  # of one connection, before others have their turn


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


class TakenOver(asyncio.Protocol):
    """Takes the socket of a plain connection over from the event loop's transport."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        plain.setblocking(False)
        cast(asyncio.Transport, transport).abort()  # uvloop's is no subclass
        PlainWire(plain, self._owner)


class PlainWire:
    """The socket of a plain connection."""

    def __init__(self, plain: socket.socket, owner: ConnectionOwner) -> None:
        self._socket, self._loop, self._closed = plain, asyncio.get_running_loop(), False
        self._connection = TcpConnection(owner, self)
        self.resume_reading()
        self._connection.begin()

    def write(self, data: bytes) -> None:
        """A welcome, which the empty buffer of a new socket takes whole."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.abort()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self.pause_reading()
            self._socket.close()
            self._loop.call_soon(self._connection.lost)

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._socket.fileno())

    def resume_reading(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_READS):
            buffers = self._connection.buffers()
            try:
                count = self._socket.recvmsg_into(buffers)[0]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if not count:
                return self.abort()
            self._connection.took(count)
            if self._closed or count < sum(map(len, buffers)):
                return


class TlsWire(asyncio.BufferedProtocol):
    """A connection with TLS, which the event loop reads and decrypts."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._connection = TcpConnection(self._owner, self._transport)
        self._connection.begin()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.buffers()[0]

    def buffer_updated(self, count: int) -> None:
        self._connection.took(count)
