"""Sends an answer over HTTP: its head once, then one write for each event.

Step 8 of a request's life. An error before the first byte is an ordinary HTTP answer, afterwards an event in the
stream."""

from collections.abc import Callable, Sequence

from starlette.types import Send

from gateway.http import errors as http_errors
from gateway.observability.record import RequestRecord
from gateway.openai.sse import DONE, encode, frame
from mesh import semconv
from mesh.errors import BatonError

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class HttpOut:
    """Sends the answer's bytes; knows whether they have begun."""

    def __init__(self, send: Send, request_id: str, trace: RequestRecord, count_error: Callable[..., None]) -> None:
        self._send, self._trace, self._count_error = send, trace, count_error
        self.request_id = request_id
        self.complete = False  # the last byte is sent
        self._begun = False

    async def whole(self, status: int, content: bytes | Sequence[bytes], headers: Headers) -> None:
        """`content` may be in pieces, which go out one after the other."""
        pieces = [content] if isinstance(content, bytes) else content
        await self._begin(status, [*headers, (b"content-length", str(sum(map(len, pieces))).encode())])
        for piece in pieces[:-1]:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": pieces[-1]})
        self.complete = True

    async def event(self, data: bytes, *, last: bool = False) -> None:
        if not self._begun:
            await self._begin(200, SSE)
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.complete = last

    async def error(self, error: BatonError) -> None:
        self._count_error(error, refused=not self._trace.choices)
        self._trace.fails(error)
        if self._begun:
            await self.event(frame(http_errors.error_body(error)) + DONE, last=True)
        else:
            await self.whole(
                error.http_status, encode(http_errors.error_body(error)), [JSON, *http_errors.headers(error)]
            )

    async def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._begun = True
        self._trace.attributes[semconv.HTTP_STATUS] = status
        named = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})
