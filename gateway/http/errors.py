"""Errors as HTTP answers: a nested object that names the wrong field where there is one, and the headers by which
clients decide whether to try again."""

from typing import Any

from mesh.errors import BatonError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    499: "cancelled",
    503: "overloaded_error",
    504: "timeout_error",
}


def body(status: int, message: str, reason: str, param: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": status, "reason": reason}}


def error_body(error: BatonError) -> dict[str, Any]:
    answer = body(error.http_status, error.message, error.reason, error.field)
    if error.code is not None:
        answer["error"]["code"] = error.code
    if error.details:
        answer["error"]["details"] = error.details
    return answer


def headers(error: BatonError) -> list[tuple[bytes, bytes]]:
    retry = error.retry_after_seconds
    found = [(b"x-error-reason", error.reason.encode()), (b"x-should-retry", b"false" if retry is None else b"true")]
    if retry is not None:
        found.append((b"retry-after", str(max(1, round(retry))).encode()))
        found.append((b"retry-after-ms", str(round(retry * 1000)).encode()))
    return found
