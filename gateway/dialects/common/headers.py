"""The layer around every answer of the HTTP API: a request id, headers for browsers, compression, JSON errors.

Answers show operations; a page of another site may not embed them, and no browser may guess another type or keep them.
What an answer sets itself stays. A redirect names a path only, never the host that the client wrote. Between the
endpoints that generate and their client stands one call for each token, and nothing is added after the head."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.dialects.common.cors import Cors
from gateway.dialects.endpoints.paths import streams, without_slash
from gateway.fairness.client_turns import WHOSE
from gateway.http.coding import compressing, reads_gzip
from gateway.validation.client_request import is_request_id

REQUEST_ID, MORE_HEADERS = "baton.request_id", "baton.headers"  # keys of a scope
DEFAULTS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class CommonHeaders:
    """An ASGI application: another one, with what all answers have in common."""

    def __init__(self, app: ASGIApp, *, draw_id: Callable[[], str], cors: Cors) -> None:
        self._app = app
        self._draw_id = draw_id
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), without_slash(scope["path"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if is_request_id(given) else self._draw_id()
        more = self._cors.headers(path, headers)
        scope = {**scope, "path": path, REQUEST_ID: request_id, MORE_HEADERS: more}
        WHOSE.set((scope.get("client") or ("",))[0])
        head = _Head(send, request_id, more, () if streams(scope["method"], path) else DEFAULTS)
        if scope["method"] == "OPTIONS" and (answer := self._cors.preflight(path, headers)) is not None:
            await head.send({"type": "http.response.start", "status": 204, "headers": answer})
            await head.send({"type": "http.response.body", "body": b""})
            return
        coded = reads_gzip(headers.get(b"accept-encoding", b"")) and scope["method"] != "HEAD"
        try:
            await self._app(scope, receive, compressing(head.send) if coded else head.send)
        except Exception:
            if head.status != 500:  # not by `defect` in gateway/dialects/info.py: the answer has begun and cannot go on
                raise


class _Head:
    """Adds the common headers to an answer's head; all other messages pass."""

    def __init__(
        self, send: Send, request_id: str, more: list[tuple[bytes, bytes]], defaults: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        self._send = send
        self._id = request_id
        self._more = more
        self._defaults = defaults
        self.status = 0  # status of the answer; 0: it has not begun

    def send(self, message: Any) -> Awaitable[None]:
        if not self.status and message["type"] == "http.response.start":
            self.status = message["status"]
            given = [(name, _path_of(value) if name == b"location" else value) for name, value in message["headers"]]
            usual = ((b"x-request-id", self._id.encode()), *self._defaults)
            names = {name for name, _ in given}
            more = [header for header in self._more if header not in given]
            message["headers"] = [*given, *(header for header in usual if header[0] not in names), *more]
        return self._send(message)


def _path_of(location: bytes) -> bytes:
    _, _, path, query, _ = urlsplit(location.decode("latin-1"))
    return urlunsplit(("", "", f"/{path.lstrip('/')}", query, "")).encode("latin-1")
