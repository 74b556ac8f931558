"""One connected, non-blocking TCP socket of a writer: it sends lists of buffers and notices when the receiver is gone.

It is no asyncio transport, which would copy the bytes that the socket does not take at once and keep views of pages. A
TLS socket takes one buffer at a time."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from kvtransfer.transfer import TransferError


class TcpSocket:
    def __init__(self, connection: socket.socket, on_lost: Callable[[str], None]) -> None:
        self.turn = asyncio.Lock()  # fair; its holder sends whole frames
        self._socket = connection
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = ""
        self._loop.add_reader(connection.fileno(), self._readable)

    async def send(self, buffers: list[memoryview]) -> None:
        """Returns when the kernel has all the bytes. Empties the list."""
        while buffers:
            if self._closed:
                raise TransferError(self._closed)
            try:
                advance(buffers, self._give(buffers))
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._writable()
            except ssl.SSLWantReadError:
                self._on_lost("tcp: the receiver renegotiates TLS, which only versions before 1.3 do")
            except OSError as error:
                self._on_lost(f"tcp: the connection broke: {error}")

    def close(self, reason: str) -> None:
        """Idempotent. A caller that waits in `send` gets a TransferError."""
        if self._closed:
            return
        self._closed = reason
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give(self, buffers: list[memoryview]) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(buffers[0])
        return self._socket.sendmsg(buffers)

    async def _writable(self) -> None:
        self._waiter = self._loop.create_future()
        self._loop.add_writer(self._socket.fileno(), self._wake)
        try:
            await self._waiter
        finally:
            if not self._closed:
                self._loop.remove_writer(self._socket.fileno())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _readable(self) -> None:
        """The receiver sends nothing after its welcome, so this is the end of the connection or TLS's own traffic."""
        try:
            received = self._socket.recv(64)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            return self._on_lost(f"tcp: the connection broke: {error}")
        self._on_lost(
            "tcp: the receiver sent bytes that no receiver sends"
            if received
            else "tcp: the receiver closed the connection"
        )


def advance(buffers: list[memoryview], count: int) -> None:
    """Take `count` bytes off the front of the list."""
    whole = 0
    while whole < len(buffers) and count >= len(buffers[whole]):
        count -= len(buffers[whole])
        whole += 1
    del buffers[:whole]
    if count:
        buffers[0] = buffers[0][count:]
