"""Errors in the shape of Anthropic's API, whole and as the last event of a stream."""

from typing import Any

from gateway.dialects.common.dialect import SSE
from gateway.dialects.common.sse import encode
from mesh.errors import BatonError

Json = dict[str, Any]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_of(status: int, message: str, reason: str, request_id: str, **more: object) -> Json:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": message, "reason": reason, **more}
    return {"type": "error", "error": error, "request_id": request_id}


class AnthropicDialect:
    alive = PING
    done = b""
    id_headers: tuple[bytes, ...] = (b"x-request-id", b"request-id")
    stream_head = SSE

    def whole(self, error: BatonError, request_id: str) -> Json:
        more: Json = {"details": error.details} if error.details else {}
        return error_of(error.http_status, error.message, error.reason, request_id, param=error.field, **more)

    def ending(self, error: BatonError, request_id: str, reply: object) -> bytes:
        return b"event: error\ndata: " + encode(self.whole(error, request_id)) + b"\n\n"
