"""One request and its answer, as an ASGI application receives the one and sends the other.

gateway/http/connection.py fills in the body as it comes, and learns when the answer is complete."""

import asyncio
import logging
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from gateway.http.head import BODILESS, answer_head, ends_connection, length_of
from gateway.http.writing import ClientWriter

FULL_BYTES = 64 * 1024  # bytes of a body that the application has not received; with more the client waits
_FAILED = b"Internal Server Error"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = logging.getLogger("baton.gateway")


class ExchangeOwner(Protocol):
    """The connection, as an exchange needs it."""

    def resume_reading(self) -> None:
        """The application wants more of the body."""

    def is_last(self) -> bool:
        """Whether the server wants the connection to end behind the answer whose head is sent now."""

    def answered(self, exchange: "Exchange") -> None:
        """The answer is complete."""

    def fail(self) -> None:
        """The answer cannot be completed: the connection ends."""


class Exchange:
    def __init__(
        self, owner: ExchangeOwner, writer: ClientWriter, scope: Scope, *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.scope, self.keep_alive = scope, keep_alive
        self.begun = self.complete = False  # the answer
        self._owner = owner
        self._writer = writer
        self._expects_continue = expects_continue
        self._body = bytearray()
        self._more_body = True
        self._news = asyncio.Event()
        self._gone = False  # the client
        self._framed = False  # the answer's body goes out in chunks
        self._left: int | None = None  # bytes of the answer's body that its head has announced

    # ---- what the connection says

    def add(self, body: bytes) -> bool:
        """More of the request's body is there. Whether more of it should wait until the application asks."""
        if self.complete:
            return False
        self._body += body
        self._news.set()
        return len(self._body) > FULL_BYTES

    def end_body(self) -> None:
        if not self.complete:
            self._more_body = False
            self._news.set()

    def client_gone(self) -> None:
        self._gone = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. Whatever it does, the client gets an answer or the end of the connection."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("an application failed")
        if self.complete or self._gone:
            return
        if self.begun:
            self._owner.fail()
            return
        length = b"%d" % len(_FAILED)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    # ---- what the application calls

    async def receive(self) -> Message:
        if self._expects_continue and not self._writer.closing:
            self._expects_continue = False
            self._writer.write(_CONTINUE)
        if not (self._gone or self.complete):
            self._owner.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        if self._writer.behind and not self._gone:
            await self._writer.room()
        if self._gone:
            return
        if self.complete:
            raise RuntimeError(f"{message['type']} comes behind the answer")
        if not self.begun:
            self._begin(message["status"], list(message.get("headers", ())))
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _begin(self, status: int, headers: list[Any]) -> None:
        headers = [(name.lower(), value) for name, value in headers]
        # A client that has not heard that it may send its body sends it, or the next request: nobody can tell.
        unclear = self._expects_continue and self._more_body
        last = unclear or ends_connection(headers) or self._owner.is_last()
        self.begun, self._expects_continue, self.keep_alive = True, False, self.keep_alive and not last
        if not self.keep_alive and not ends_connection(headers):
            headers.append((b"connection", b"close"))
        bodiless = self.scope["method"] == "HEAD" or status in BODILESS
        self._left = 0 if bodiless else length_of(headers)
        if self._left is None and self._writer.framed:
            self._framed = True
            headers.append((b"transfer-encoding", b"chunked"))
        self._writer.write(answer_head(status, headers))

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._left is not None:
            body = b"" if self.scope["method"] == "HEAD" else body
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer's body is not as long as its head says")
        if self._framed:
            body = b"%b%b" % (self._writer.chunk(body) if body else b"", b"" if more else b"0\r\n\r\n")
        if body:
            self._writer.write(body)
        if not more:
            self.complete = True
            self._news.set()
            self._owner.answered(self)
