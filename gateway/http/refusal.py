"""The answer to a client whose bytes never become a request: it passes no application, straight to the connection."""

from http import HTTPStatus
from itertools import count

from msgspec.json import encode

from gateway.http import errors as http_errors

REASONS = {
    400: "MALFORMED_REQUEST",
    408: "REQUEST_TIMEOUT",
    431: "HEADERS_TOO_LARGE",
    501: "UNKNOWN_TRANSFER_ENCODING",
    503: "TOO_MANY_CONNECTIONS",
    505: "UNKNOWN_HTTP_VERSION",
}
_numbers = count(1)


def refusal(status: int, message: str) -> bytes:
    """A whole answer."""
    error = http_errors.body(status, message, REASONS[status])
    content = encode(error)
    head = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "x-request-id": f"refused-{next(_numbers)}",
        "x-error-reason": REASONS[status],
        "x-should-retry": "true" if status in (408, 503) else "false",
    }
    if status == 503:
        head |= {"retry-after": "1", "retry-after-ms": "1000"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
