"""The writing side of one HTTP connection: it bounds the bytes that wait for a client, and ends one that never reads.

What is written and not yet sent is bounded, here and in the kernel: uvicorn's `send` waits while the transport has more
than WRITE_BYTES, so a client that is behind holds back its own answer (gateway/sequencing/unread.py) and costs no
memory. A client that takes nothing for `reader_seconds` is disconnected. The application finds this object in its
scope. gateway/http/connection.py adds what comes in."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.json import encode
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.read import ClientGone

WRITE_BYTES = 32 * 1024  # in the transport; with more the answer waits
UNSENT_BYTES = 32 * 1024  # in the kernel and not yet sent, likewise
LOOKS = 4  # how often in `reader_seconds` the connection looks whether the client has taken something
EXTENSION = "baton.connection"  # key of this object in scope["extensions"]


class JoinedWrites:
    """The writes of one pass of the event loop, made one right after the other in the next pass. Every write may wake
    the process that reads; of writes that follow each other closely, few do."""

    def __init__(self) -> None:
        self.waiting: list[tuple[BoundedWriting, bytes]] = []

    def add(self, connection: "BoundedWriting", data: bytes) -> None:
        if not self.waiting:
            connection.loop.call_soon(self._write, connection.loop)
        self.waiting.append((connection, data))

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, now = self.waiting.copy(), loop.time()
        self.waiting.clear()
        for connection, data in waiting:
            transport = connection.transport
            if not transport.is_closing():
                transport.write(data)
            connection.sent_seconds = now


class BoundedWriting(HttpToolsProtocol):
    def __init__(self, *arguments: Any, reader_seconds: float, writes: "JoinedWrites", **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._writes = writes
        self.writable = False  # the client is there and keeps up
        self.framed = True  # it knows chunks: HTTP/1.1
        self.sent_seconds = 0.0  # when `write_chunk_soon` last had its turn
        self.lost = False  # the client has gone, or was disconnected
        self.stalled = False  # it was disconnected because it took nothing for `reader_seconds`
        self.reader_seconds = reader_seconds
        self._needed_by: asyncio.Task[Any] | None = None  # it works on a request that nobody wants without the client
        self._look: asyncio.TimerHandle | None = None
        self._left = self._looks = 0  # bytes left at the last look, looks since the client last took something

    @property
    def closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.transport.is_closing()

    @property
    def behind(self) -> bool:
        """Whether the answer waits for the client to read."""
        return self.flow.write_paused

    async def room(self) -> None:
        """Returns when the client has read on, or is gone."""
        await self.flow.drain()

    def write_chunk(self, data: bytes) -> None:
        """One chunk of a body whose head went out without a length, so that uvicorn sends it in chunks."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.framed else data)

    def sender(self, before: bytes, behind: bytes) -> Callable[[str], bool]:
        """A function that writes a chunk of a JSON string between these bytes with the next pass of the event loop,
        before any task that is woken from now on writes. It returns False where the client is behind or gone."""
        waiting, add, around = self._writes.waiting, self._writes.add, len(before) + len(behind)
        heads: dict[int, bytes] = {}  # what stands before a string of so many bytes
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.writable = True
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {EXTENSION: self}
        self.scope["extensions"] = extensions

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.writable = True, False
        if self._needed_by is not None:
            self._needed_by.cancel()
        self._stop_looking()
        super().connection_lost(exc)

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

    # ---- a client that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writable = False
        self._left, self._looks = self.transport.get_write_buffer_size(), 0
        self._look_later()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()
        self.writable = not (self.lost or self.closing)

    def _look_later(self) -> None:
        self._look = self.loop.call_later(self.reader_seconds / LOOKS, self._look_at_client)

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


def connection_of(scope: Scope) -> BoundedWriting | None:
    """The client's connection; None under another server than ours."""
    found = scope.get("extensions", {}).get(EXTENSION)
    return found if isinstance(found, BoundedWriting) else None
