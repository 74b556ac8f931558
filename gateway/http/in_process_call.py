"""One request inside this process: the bytes of a client's request through the connection code, and the answer's back.

The gateway sends itself what it computes for a client that does not wait; tests send theirs in the same way."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp

from gateway.http.connection import ClientConnection
from gateway.http.in_process import InProcessClient
from gateway.http.open_connections import OpenConnections

Header = tuple[bytes, bytes]
_CHUNKED = (b"transfer-encoding", b"chunked")


@dataclass(frozen=True, slots=True)
class InProcessAnswer:
    status: int  # 0: nothing of the answer came
    headers: list[Header]
    body: bytes


async def in_process_call(
    app: ASGIApp,
    connections: OpenConnections,
    method: str,
    target: str,
    headers: Sequence[Header] = (),
    body: bytes = b"",
) -> InProcessAnswer:
    """The request has a connection of its own. To cancel the call is to hang up."""
    client = InProcessClient(lambda: ClientConnection(app, connections))
    client.send(request_bytes(method, target, headers, body))
    got = bytearray()
    try:
        while data := await client.read():
            got += data
    finally:
        client.close()
    return answer_of(bytes(got))


def request_bytes(method: str, target: str, headers: Sequence[Header], body: bytes) -> bytes:
    """A request that is the last one of its connection."""
    given = [(name, value) for name, value in headers if name.lower() not in (b"connection", b"content-length")]
    length = [(b"content-length", b"%d" % len(body))] if body or method == "POST" else []
    lines = [f"{method} {target} HTTP/1.1".encode()]
    lines += [b"%b: %b" % header for header in (*given, *length, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", b""]) + body


def answer_of(raw: bytes) -> InProcessAnswer:
    """One whole answer, or what has come of it."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines[1:])]
    status = int(raw[9:12] or 0)
    if _CHUNKED not in headers:
        return InProcessAnswer(status, headers, rest)
    parts, at = list[bytes](), 0
    while (end := rest.find(b"\r\n", at)) >= 0 and (size := int(rest[at:end] or b"0", 16)):
        parts.append(rest[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return InProcessAnswer(status, [each for each in headers if each != _CHUNKED], b"".join(parts))
