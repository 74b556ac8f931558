"""Errors in the shape of Ollama's API, and what its streams consist of: lines of JSON."""

from typing import Any

from gateway.dialects.common.dialect import REQUEST_ID
from gateway.dialects.common.sse import encode
from mesh.errors import BatonError

Json = dict[str, Any]
LINES = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]


def line(value: object) -> bytes:
    return encode(value) + b"\n"


class OllamaDialect:
    alive = b""  # its clients take every line for JSON
    done = b""
    id_headers: tuple[bytes, ...] = (REQUEST_ID,)
    stream_head = LINES

    def whole(self, error: BatonError, request_id: str) -> Json:
        return {"error": error.message}

    def ending(self, error: BatonError, request_id: str, reply: object) -> bytes:
        return line(self.whole(error, request_id))
