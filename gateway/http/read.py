"""Reads the body of a request: its coding, its type and its size are checked before anything parses it."""

from starlette.types import Receive, Scope

from mesh.errors import BodyTooLarge, UnsupportedMedia, brief

BODY_BYTES = 32 * 2**20


class ClientGone(Exception):
    """The client left before it had sent its request."""


async def read_body(scope: Scope, receive: Receive) -> bytes:
    _check_headers(dict(scope["headers"]))
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise BodyTooLarge(f"the body is larger than {BODY_BYTES} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


def _check_headers(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"application/json")
    if kind.split(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMedia(f"content-type is {brief(kind.decode('latin-1'))!r}; it must be application/json")
    coding = headers.get(b"content-encoding", b"identity")
    if coding.strip().lower() not in (b"identity", b""):
        raise UnsupportedMedia(f"content-encoding is {brief(coding.decode('latin-1'))!r}: send the body uncompressed")
