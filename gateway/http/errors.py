"""Errors as HTTP answers: a nested object that names the wrong field where there is one, and the headers by which
clients decide whether to try again.

An error that another try may cure says what the failed one has cost: the tokens that were generated for it."""

import math
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from gateway.tracing.record import RequestRecord
from mesh.errors import BatonError

SPENT = "tokens_spent"  # key of an error's details
MOST_NAMES = 16  # fields that a header names, of the LOOKED_AT first ones: a client may send 100,000
LOOKED_AT = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
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
        found.append((b"retry-after", str(max(1, math.ceil(retry))).encode()))
        found.append((b"retry-after-ms", str(round(retry * 1000)).encode()))
    if SPENT in error.details:
        found.append((b"x-baton-tokens-spent", error.details[SPENT].encode()))
    return found


def page_headers(content: dict[str, Any]) -> dict[str, str]:
    """Headers of an error that no other try cures, by its body."""
    return {"x-error-reason": content["error"]["reason"], "x-should-retry": "false"}


def spent(error: BatonError, trace: RequestRecord) -> BatonError:
    """The error, with the tokens that the request has cost so far."""
    if error.http_status >= 429:
        error.details.setdefault(SPENT, str(sum(choice.tokens for choice in trace.choices)))
    return error


def shown_names(names: Sequence[str]) -> bytes:
    """Names of fields as the value of a header, whatever a client called them."""
    distinct = dict.fromkeys(names)
    shown = [name for name in islice(distinct, LOOKED_AT) if _NAME.fullmatch(name)][:MOST_NAMES]
    rest = len(distinct) - len(shown)
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])]).encode()
