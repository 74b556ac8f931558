"""HTTP clients of an application in the same process: its own connections, without sockets."""

from typing import Any

import httpx2

from gateway.http.connection import ClientConnection
from gateway.http.in_process import InProcessClient
from gateway.http.open_connections import OpenConnections
from mesh.config.door_config import DoorConfig


def request_bytes(method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A request that is the last one of its connection."""
    given = [(name, value) for name, value in headers if name.lower() not in (b"connection", b"content-length")]
    length = [(b"content-length", b"%d" % len(body))] if body or method == "POST" else []
    lines = [f"{method} {target} HTTP/1.1".encode()]
    lines += [b"%b: %b" % header for header in (*given, *length, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", b""]) + body


def answer_of(raw: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of one whole answer, or of what has come of it; status 0: nothing has."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines[1:])]
    if (b"transfer-encoding", b"chunked") not in headers:
        return int(raw[9:12] or 0), headers, rest
    parts = list[bytes]()
    while rest and (size := int(rest.partition(b"\r\n")[0] or b"0", 16)):
        behind = rest.partition(b"\r\n")[2]
        parts.append(behind[:size])
        rest = behind[size + 2 :]
    return int(raw[9:12]), headers, b"".join(parts)


class SocketlessHttp(httpx2.AsyncBaseTransport):
    """Each request has a connection of its own."""

    def __init__(self, app: Any, limits: DoorConfig | None = None) -> None:
        self._app, self._open = app, OpenConnections(limits or DoorConfig())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        client = InProcessClient(lambda: ClientConnection(self._app, self._open))
        body = await request.aread()
        client.send(request_bytes(request.method, request.url.raw_path.decode(), list(request.headers.raw), body))
        got = bytearray()
        try:
            while data := await client.read():
                got += data
        finally:
            client.close()
        status, headers, content = answer_of(bytes(got))
        kept = [(name, value) for name, value in headers if name not in (b"transfer-encoding",)]
        return httpx2.Response(status, headers=kept, content=content, request=request)
