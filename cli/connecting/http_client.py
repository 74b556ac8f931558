"""The HTTP/1.1 client of all commands, over asyncio streams: reused connections, TLS, bodies in pieces, JSON.

It exists because a load generator must cost little, and because commands run with the base dependencies. It follows no
redirect and asks for no compression. Every failure is a RequestFailed; `send` leaves the time limit to its caller."""

import asyncio
import errno
import json
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from cli.connecting.answer_text import redirect
from cli.connecting.http_url import HttpUrl

PIECE_BYTES = 1 << 16
OWN_LIMIT = "generator limit"  # kind of a failure that says nothing about the server
OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)  # files or ports of this machine are used up
HEAD_LINES = 256  # more header lines than any server sends

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


class RequestFailed(Exception):
    """A request without a whole answer. `kind` groups failures in reports, `detail` is an example of them."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


class HttpResponse:
    """Status and headers of an answer, and its body as pieces."""

    def __init__(self, reader: asyncio.StreamReader, version: bytes, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self._reader = reader
        self._whole = False
        closes = version == b"HTTP/1.0" or "close" in headers.get("connection", "").lower()
        self._keeps = not closes
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._length = None if length is None or self._chunked else _number(length.strip().encode(), 10)
        if status in (204, 304):
            self._chunked, self._length = False, 0
        if not self._chunked and self._length is None:
            self._keeps = False

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._whole and self._keeps

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives."""
        if self._chunked:
            while size := _number((await self._reader.readuntil(b"\n")).partition(b";")[0].strip(), 16):
                async for piece in self._exactly(size):
                    yield piece
                if (await self._reader.readuntil(b"\n")).strip():
                    raise RequestFailed("broken HTTP", "a chunk is longer than its size")
            while (await self._reader.readuntil(b"\n")).strip():
                pass  # trailers
        elif self._length is not None:
            async for piece in self._exactly(self._length):
                yield piece
        else:
            while piece := await self._reader.read(PIECE_BYTES):
                yield piece
        self._whole = True

    async def body(self, most_bytes: int = 1 << 24) -> bytes:
        """The whole body; one of more than `most_bytes` is a failure."""
        parts, size = list[bytes](), 0
        async for piece in self.pieces():
            parts.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise RequestFailed("broken answer", f"the body is longer than {most_bytes} bytes")
        return b"".join(parts)

    def refuse_redirect(self) -> None:
        if 300 <= self.status < 400:
            raise RequestFailed(f"HTTP {self.status}", redirect(self.headers.get("location", "elsewhere")))

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            piece = await self._reader.read(min(size, PIECE_BYTES))
            if not piece:
                raise RequestFailed("connection lost", "the server closed the connection inside an answer")
            size -= len(piece)
            yield piece


class HttpClient:
    """Requests to one server. Connections that are idle are reused, the newest first."""

    def __init__(
        self, url: HttpUrl, headers: Mapping[str, str], connect: Connect | None = None, *, keeps: bool = True
    ) -> None:
        """Without `keeps` each request has a connection of its own, and the client needs no `close`."""
        self.url, self._keeps = url, keeps
        headers = headers if keeps else {"connection": "close", **headers}
        self._connect = connect or tcp(url)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[Streams] = []

    @asynccontextmanager
    async def send(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[HttpResponse]:
        """The answer once its head is there. `path` begins at the root of the server."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.url.authority}\r\nAccept-Encoding: identity\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        streams, response = await self._exchange(head + body)
        try:
            with _failures():
                yield response
        finally:
            if response.reusable and self._keeps:
                self._idle.append(streams)
            else:
                streams[1].close()

    async def fetch(self, method: str, path: str, body: object = None, *, seconds: float) -> tuple[int, Any]:
        """Status and decoded JSON (None where it is none) of a request at the root of the server."""
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(seconds), self.send(method, path, data) as response:
                response.refuse_redirect()
                raw = await response.body()
        except TimeoutError:
            raise RequestFailed("timeout", f"no answer to {method} {path} after {seconds:g} s") from None
        return response.status, decoded(raw)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, data: bytes) -> tuple[Streams, HttpResponse]:
        """A server may close an idle connection at any time: then the request goes over the next one."""
        while self._idle:
            streams = self._idle.pop()
            if streams[0].at_eof():
                streams[1].close()
                continue
            try:
                return streams, await _ask(streams, data)
            except _Closed:
                continue
        streams = await self._connect()
        try:
            return streams, await _ask(streams, data)
        except _Closed:
            raise RequestFailed("connection lost", "the server closed the connection without an answer") from None


def decoded(raw: bytes) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def tcp(url: HttpUrl) -> Connect:
    """Opens connections to this server, with TLS for https; the system's authorities or SSL_CERT_FILE are trusted."""
    tls = ssl.create_default_context() if url.secure else None

    async def connect() -> Streams:
        try:
            return await asyncio.open_connection(url.host, url.port, ssl=tls)
        except ssl.SSLError as error:
            raise RequestFailed("TLS failed", error.reason or str(error)) from None
        except OSError as error:
            if error.errno in OWN_LIMITS:
                raise RequestFailed(OWN_LIMIT, os.strerror(error.errno)) from None
            raise RequestFailed("cannot connect", os.strerror(error.errno) if error.errno else str(error)) from None

    return connect


class _Closed(Exception):
    """The server closed the connection before the first byte of its answer."""


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what a lost or broken connection raises into RequestFailed."""
    try:
        yield
    except asyncio.LimitOverrunError:
        raise RequestFailed("broken HTTP", "a line of the head is too long") from None
    except asyncio.IncompleteReadError:
        raise RequestFailed("connection lost", "the server closed the connection inside an answer") from None
    except TimeoutError:
        raise
    except OSError as error:
        raise RequestFailed("connection lost", str(error)) from None


async def _ask(streams: Streams, data: bytes) -> HttpResponse:
    """Send a request and read the head of its answer; closes the connection on failure."""
    reader, writer = streams
    try:
        with _failures():
            status_line = await _first_line(reader, writer, data)
            while True:
                response = await _head(reader, status_line)
                if response.status >= 200:
                    return response
                status_line = await reader.readuntil(b"\n")  # 100 Continue and its like precede the answer
    except BaseException:
        writer.close()
        raise


async def _first_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    try:
        writer.write(data)
        await writer.drain()
        return await reader.readuntil(b"\n")
    except ConnectionError:
        raise _Closed from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise _Closed from None


async def _head(reader: asyncio.StreamReader, status_line: bytes) -> HttpResponse:
    match = re.fullmatch(rb"(HTTP/1\.[01]) (\d{3})(?: .*)?", status_line.strip())
    if match is None:
        raise RequestFailed("broken HTTP", f"the answer begins with {status_line[:40]!r}")
    headers: dict[str, str] = {}
    for _ in range(HEAD_LINES):
        line = (await reader.readuntil(b"\n")).strip()
        if not line:
            return HttpResponse(reader, match[1], int(match[2]), headers)
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raise RequestFailed("broken HTTP", f"the answer has more than {HEAD_LINES} header lines")


def _number(text: bytes, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise RequestFailed("broken HTTP", f"{text[:40]!r} is no length")
    return number
