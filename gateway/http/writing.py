"""The writing side of one HTTP connection: it bounds the bytes that wait for a client, and ends one that never reads.

What is written and not yet sent is bounded, here and in the kernel: `room` waits while the transport has more than
WRITE_BYTES, so a client that is behind holds back its own answer (gateway/sequencing/unread.py) and costs no memory. A
client that takes nothing for `reader_seconds` is disconnected. The application finds this object in its scope.
gateway/http/connection.py adds what comes in."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.json import encode
from starlette.types import Scope

from gateway.http.read import ClientGone

WRITE_BYTES = 32 * 1024  # in the transport; with more the answer waits
UNSENT_BYTES = 32 * 1024  # in the kernel and not yet sent, likewise
LOOKS = 4  # how often in `reader_seconds` the connection looks whether the client has taken something
EXTENSION = "baton.connection"  # key of this object in scope["extensions"]


class JoinedWrites:
    """The writes of one pass of the event loop, made one right after the other in the next pass. Every write may wake
    the process that reads; of writes that follow each other closely, few do."""

    def __init__(self) -> None:
        self.waiting: list[tuple[ClientWriter, bytes]] = []

    def add(self, writer: "ClientWriter", data: bytes) -> None:
        if not self.waiting:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._write, loop)
        self.waiting.append((writer, data))

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, now = self.waiting.copy(), loop.time()
        self.waiting.clear()
        for writer, data in waiting:
            writer.write(data)
            writer.sent_seconds = now


class ClientWriter:
    def __init__(self, transport: asyncio.Transport, writes: JoinedWrites, reader_seconds: float) -> None:
        self.transport, self.reader_seconds = transport, reader_seconds
        self.writable = True  # the client is there and keeps up
        self.framed = True  # it knows chunks: HTTP/1.1
        self.refused = False  # nothing but an error goes to this client
        self.sent_seconds = 0.0  # when `sender` last had its turn
        self.lost = False  # the client has gone, or was disconnected
        self.stalled = False  # it was disconnected because it took nothing for `reader_seconds`
        self._writes = writes
        self._room = asyncio.Event()
        self._room.set()
        self._needed_by: asyncio.Task[Any] | None = None  # it works on a request that nobody wants without the client
        self._look: asyncio.TimerHandle | None = None
        self._left = self._looks = 0  # bytes left at the last look, looks since the client last took something
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    @property
    def closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.refused or self.transport.is_closing()

    @property
    def behind(self) -> bool:
        """Whether the answer waits for the client to read."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Returns when the client has read on, or is gone."""
        await self._room.wait()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def chunk(self, data: bytes) -> bytes:
        """A part of a body whose head went out without a length, as this client reads it."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.framed else data

    def sender(self, before: bytes, behind: bytes) -> Callable[[str], bool]:
        """A function that writes a chunk of a JSON string between these bytes with the next pass of the event loop,
        before any task that is woken from now on writes. It returns False where the client is behind or gone."""
        waiting = self._writes.waiting
        add = self._writes.add
        around = len(before) + len(behind)
        heads: dict[int, bytes] = {}  # bytes before a string, by its size in bytes
        framed = self.framed
        tail = behind + b"\r\n" if framed else behind

        def send(text: str) -> bool:
            if not self.writable:
                return False
            middle = encode(text)
            head = heads.get(len(middle))
            if head is None:
                head = heads[len(middle)] = b"%x\r\n%b" % (around + len(middle), before) if framed else before
            chunk = head + middle + tail
            if waiting:
                waiting.append((self, chunk))
            else:
                add(self, chunk)
            return True

        return send

    @contextmanager
    def needed(self) -> Iterator[None]:
        """While the context lasts, the current task is for this client only: it is cancelled when the client goes.
        Raises ClientGone then, and at once where the client has gone already."""
        if self._has_left():
            raise ClientGone
        self._needed_by = task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if task is None or not self._has_left():
                raise
            task.uncancel()
            raise ClientGone from None
        finally:
            self._needed_by = None

    def _has_left(self) -> bool:
        return self.lost

    # ---- what the connection says

    def client_gone(self) -> None:
        self.lost, self.writable = True, False
        if self._needed_by is not None:
            self._needed_by.cancel()
        self._stop_looking()
        self._room.set()

    def pause(self) -> None:
        """The client is behind."""
        self.writable = False
        self._room.clear()
        self._left, self._looks = self.transport.get_write_buffer_size(), 0
        self._look_later()

    def resume(self) -> None:
        self._stop_looking()
        self._room.set()
        self.writable = not (self.lost or self.closing)

    # ---- a client that does not read

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(self.reader_seconds / LOOKS, self._look_at_client)

    def _look_at_client(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._looks = 0 if left < self._left else self._looks + 1
        self._left = left
        if self._looks < LOOKS:
            self._look_later()
            return
        self.stalled = True
        self.transport.abort()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None


def connection_of(scope: Scope) -> ClientWriter:
    """The writing side of the client's connection."""
    found: ClientWriter = scope["extensions"][EXTENSION]
    return found
