"""The page `/ui` and what it reads: its files, one snapshot of the mesh, and the stream of changes.

Everything here only reads, except that workers are asked for page maps while somebody watches. A page of another site
gets no data: browsers say where a request comes from. The chat box uses the API like any other client."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from gateway.attaching.service import Gateway
from gateway.dialects.common.sse import encode
from gateway.dialects.endpoints.paths import routes_of
from gateway.http import errors as http_errors
from gateway.observability.broadcast import Broadcast
from gateway.observability.page_files import HEADERS, read_page_files
from gateway.observability.ui_state import maps_of, now_seconds, state_of
from mesh.errors import brief
from mesh.messages.orders import Watch

WATCH_SECONDS = 6  # time after the last Watch for which a worker goes on sending page maps
WATCH_EVERY_SECONDS = 2.0
READ_SECONDS = 10.0  # a watcher that takes nothing for this time is dropped
RETRY_MS = 1000  # a browser that lost the stream tries again after this time

_JSON = "application/json"
_OWN_PAGES = ("same-origin", "none")  # values of Sec-Fetch-Site; programs send none at all


class Ui:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._broadcast = Broadcast(self._topics, self._watch_workers)
        self._files = read_page_files()
        self._asked: dict[int, float] = {}  # incarnation -> when it got Watch last

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "/ui": self._file,
                "/ui/state": self._state,
                "/ui/events": _Events(self._broadcast),
                "/ui/{name}": self._file,
            }
        )

    def close(self) -> None:
        self._broadcast.close()

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if (file := self._files.get(name)) is None:
            return _refusal(404, f"the page has no file {brief(name)!r}; open /ui")
        return file.answer(request)

    async def _state(self, request: Request) -> Response:
        if not _is_own(request.headers.get("sec-fetch-site")):
            return _refusal(403, "pages of other sites may not read this")
        content = state_of(self._gateway) | {"maps": maps_of(self._gateway), "now": now_seconds()}
        return Response(encode(content), media_type=_JSON, headers=HEADERS)

    def _topics(self) -> dict[str, bytes]:
        return {"state": encode(state_of(self._gateway)), "maps": encode(maps_of(self._gateway))}

    def _watch_workers(self) -> None:
        """Ask every worker for page maps, again before the last request runs out."""
        now = asyncio.get_running_loop().time()
        attached = {worker.incarnation: worker for worker in self._gateway.workers}
        self._asked = {incarnation: at for incarnation, at in self._asked.items() if incarnation in attached}
        for incarnation, worker in attached.items():
            if now - self._asked.get(incarnation, -WATCH_EVERY_SECONDS) >= WATCH_EVERY_SECONDS:
                self._asked[incarnation] = now
                worker.send(Watch(WATCH_SECONDS))


class _Events:
    """`GET /ui/events` as an ASGI application: what changes, as server-sent events."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if not _is_own(request.headers.get("sec-fetch-site")):
            await _refusal(403, "pages of other sites may not read this")(scope, receive, send)
            return
        if self._broadcast.closed:
            await _refusal(503, "the gateway stops")(scope, receive, send)
            return
        watcher = self._broadcast.join(request.client.host if request.client else "")
        leaving = asyncio.ensure_future(_leave(receive, watcher.leave))
        try:
            kind = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": kind})
            await _body(send, b"retry: %d\n\n" % RETRY_MS)
            async for data in self._broadcast.events(watcher):
                await _body(send, data)
            await _body(send, b"", last=True)
        except OSError:  # the reader is gone, or has not read for READ_SECONDS
            return
        finally:
            leaving.cancel()
            self._broadcast.forget(watcher)


async def _body(send: Send, data: bytes, *, last: bool = False) -> None:
    """Waits while the reader is slow; raises TimeoutError, an OSError, where it does not read at all."""
    async with asyncio.timeout(READ_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": not last})


async def _leave(receive: Receive, leave: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()


def _is_own(site: str | None) -> bool:
    return site is None or site in _OWN_PAGES


def _refusal(status: int, message: str) -> Response:
    kind = {403: "permission_denied", 404: "not_found", 503: "unavailable"}[status]
    content = http_errors.body(status, message, kind)
    return Response(encode(content), status, http_errors.page_headers(content), media_type=_JSON)
