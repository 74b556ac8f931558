"""Sends an answer over HTTP: its head once, then one write for each event.

Step 8 of a request's life. An error before the first byte is an ordinary HTTP answer, afterwards an event in the
stream. A stream that is idle for `keep_alive_seconds` gets a comment, which clients skip and proxies count as life; it
begins the stream if nothing has yet."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from starlette.types import Send

from gateway.dialects.common.dialect import OPENAI, Dialect
from gateway.dialects.common.pieces import PIECE_BYTES
from gateway.dialects.common.sse import encode
from gateway.http import errors as http_errors
from gateway.http.writing import ClientWriter
from gateway.tracing.record import RequestRecord
from mesh.errors import BatonError, ReaderStalled
from mesh.telemetry import semconv

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


class HttpOut:
    """Sends the answer's bytes; knows whether they have begun."""

    def __init__(
        self,
        send: Send,
        client: ClientWriter,
        request_id: str,
        trace: RequestRecord,
        count_error: Callable[..., None],
        *,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._send = send
        self._client = client
        self._trace = trace
        self._count_error = count_error
        self.request_id, self.dialect = request_id, dialect
        self.complete = False  # the last byte is sent
        self._begun = False
        self._clock = asyncio.get_running_loop().time
        self._sent_seconds = self._clock()  # when the last event was sent
        self._idle: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def whole(self, status: int, content: bytes | Sequence[bytes], headers: Headers) -> None:
        """`content` may be in pieces, which go out one after the other."""
        pieces = [content] if isinstance(content, bytes) else content
        size = sum(map(len, pieces))
        if size <= PIECE_BYTES:
            pieces = [b"".join(pieces)]
        await self._begin(status, [*headers, (b"content-length", str(size).encode())])
        for piece in pieces[:-1]:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # a client that keeps up would let no other one have a turn
        await self._send({"type": "http.response.body", "body": pieces[-1]})
        self.complete = True

    def needed(self) -> AbstractContextManager[None]:
        """See gateway/http/writing.py."""
        return self._client.needed()

    def at_once(self, before: bytes, behind: bytes) -> Callable[[str], bool]:
        """A function that sends an event of a stream that has begun, without waiting: a JSON string between these
        bytes. It returns False, and sends nothing, where the client is behind or gone; `event` is for these."""
        return self._client.sender(before, behind)

    async def event(self, data: bytes, *, last: bool = False) -> None:
        """Raises ReaderStalled or ConnectionResetError when the client is gone."""
        client = self._client
        if last or not self._begun:
            if not self._begun:
                await self._begin(200, self.dialect.stream_head)
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        else:  # past the layers of the application, which have nothing to do with an event
            if client.behind:
                await client.room()
            if client.closing:
                raise _gone(client)
            client.write(client.chunk(data))
        if client.lost:
            raise _gone(client)
        self._sent_seconds = self._clock()
        self.complete = last

    def keep_alive(self, seconds: float) -> None:
        """The answer is a stream: from now on it gets a comment whenever it is idle for `seconds`."""
        if seconds:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(seconds, self._look, loop, seconds)

    def close(self) -> None:
        """No more comments."""
        for waiting in (self._idle, self._comment):
            if waiting is not None:
                waiting.cancel()
        self._idle = self._comment = None

    def _look(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        sent_seconds = max(self._sent_seconds, self._client.sent_seconds)
        left = sent_seconds + seconds - self._clock()
        if left <= 0:
            left, self._sent_seconds = seconds, self._clock()
            if not self._client.behind:
                self._comment = loop.create_task(self._send_comment())
        self._idle = loop.call_later(left, self._look, loop, seconds)

    async def _send_comment(self) -> None:
        if not self._begun:
            await self._begin(200, self.dialect.stream_head)
        if not self.complete:
            await self._send({"type": "http.response.body", "body": self.dialect.alive, "more_body": True})

    async def error(self, error: BatonError, reply: object = None) -> None:
        """`reply`: what has sent the events of the stream so far; None: nothing has."""
        self._count_error(error, refused=not self._trace.choices)
        self._trace.fails(error)
        if self._client.lost:
            return
        if self._begun:
            await self.event(self.dialect.ending(error, self.request_id, reply), last=True)
        else:
            content = encode(self.dialect.whole(error, self.request_id))
            await self.whole(error.http_status, content, [JSON, *http_errors.headers(error)])

    async def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._begun = True
        self._trace.attributes[semconv.HTTP_STATUS] = status
        named = [*headers, *((name, self.request_id.encode()) for name in self.dialect.id_headers)]
        await self._send({"type": "http.response.start", "status": status, "headers": named})


def _gone(client: ClientWriter) -> Exception:
    if client.stalled:
        return ReaderStalled(f"the client took nothing of its answer for {client.reader_seconds:g} s")
    return ConnectionResetError("the client is gone")
