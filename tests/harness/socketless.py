"""HTTP clients of an application in the same process: its own connections, without sockets."""

from typing import Any

import httpx2

from gateway.http.in_process_call import in_process_call
from gateway.http.open_connections import OpenConnections
from mesh.config.door_config import DoorConfig


class SocketlessHttp(httpx2.AsyncBaseTransport):
    """Each request has a connection of its own."""

    def __init__(self, app: Any, limits: DoorConfig | None = None) -> None:
        self._app, self._open = app, OpenConnections(limits or DoorConfig())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target, body = request.url.raw_path.decode(), await request.aread()
        found = await in_process_call(self._app, self._open, request.method, target, list(request.headers.raw), body)
        return httpx2.Response(found.status, headers=found.headers, content=found.body, request=request)
