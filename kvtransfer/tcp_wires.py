"""The two kinds of wires of a receiver's TCP connections (kvtransfer/tcp_connection.py).

A plain connection is read from its socket, since one such read fills as many pages as there are bytes for. With TLS the
event loop decrypts, and gives one page at a time."""

import asyncio
import os
import socket
from typing import cast

from kvtransfer.tcp_connection import ConnectionOwner, TcpConnection

_READS = 4  # reads from one connection before others have their turn
_AT_ONCE_BYTES = 128 * 1024


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
        self._at_once = 1  # bytes that the kernel collects before it wakes us
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
            room = sum(map(len, buffers))
            try:
                count = self._socket.recvmsg_into(buffers)[0]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                count = 0
            if not count:
                return self.abort()
            self._connection.took(count)
            if self._closed:
                return
            if count < room:
                break
        self._wait_for(self._connection.certain_bytes)

    def _wait_for(self, wanted: int) -> None:
        """Have the kernel wake us for many of these bytes at a time, which all come for certain: to be woken costs more
        than to copy a page. The end of the connection wakes us too."""
        if (at_once := min(wanted, _AT_ONCE_BYTES)) != self._at_once:
            self._at_once = at_once
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_once)


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
