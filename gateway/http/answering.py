"""Replaces two parts of uvicorn's connections: flow control that holds, and a transport whose end the connection
decides.

gateway/http/connection.py holds one of the first, and makes one of the second for each request."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

CHUNKED = b"transfer-encoding: chunked\r\n"  # as uvicorn writes it, at the end of an answer's head


class HeldFlow(FlowControl):
    """Reading stays paused while the connection holds bytes that the parser has not had."""

    held = False

    def hold(self) -> None:
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Connection(Protocol):
    transport: asyncio.Transport

    def close_behind_answer(self) -> None:
        """The answer is written, or its application failed: the connection ends."""


class AnswerTransport:
    """The transport that uvicorn writes an answer to, and closes behind the last one; the connection decides how."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write, self.is_closing = connection.transport.write, connection.transport.is_closing

    def close(self) -> None:
        self._connection.close_behind_answer()


class UnframedAnswer(AnswerTransport):
    """The same for a client of HTTP/1.0, which knows no chunks: the end of the connection ends its answer. uvicorn
    writes head and chunks each as a whole."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._plain, self._in_chunks = self.write, False
        self.write = self._unframed

    def _unframed(self, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        if self._in_chunks:
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size, 16)] if size else b""
        elif CHUNKED in data:
            self._in_chunks, data = True, data.replace(CHUNKED, b"", 1)
        self._plain(data)


def before_messages(app: ASGIApp, act: Callable[[], None]) -> Any:
    """The application; `act` runs before each message of its answer."""

    async def acting(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            act()
            await send(message)

        await app(scope, receive, sent)

    return acting
