"""The closed list of errors that reach a client, each mapped once to a gRPC status, an HTTP status and a reason.

Code raises an error where the field or the worker is known; only the front doors catch it (gateway/dialects/api.py,
gateway/grpc/api.py). `message` names the problem and what the client can do; `details` are facts for machines, never
secrets."""

from collections.abc import Mapping
from typing import ClassVar

import grpc

MOST_REPEATED = 100  # characters of what a client wrote that a message repeats


def brief(text: str) -> str:
    """A client's text as a message repeats it."""
    return text if len(text) <= MOST_REPEATED else f"{text[:MOST_REPEATED]}…"


class BatonError(Exception):
    """Base of the list; code raises one of the subclasses."""

    grpc_status: ClassVar[grpc.StatusCode]
    http_status: ClassVar[int]
    reason: ClassVar[str]  # stable name for machines
    code: ClassVar[str | None] = None  # the code by which clients of the OpenAI API know it; None: the HTTP status

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field  # wrong field, as the client's front door spells it
        self.retry_after_seconds = retry_after_seconds  # None: the same request fails again
        self.details: dict[str, str] = dict(details or {})


class InvalidRequest(BatonError):
    """A field is wrong by itself or together with another one."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reason = "INVALID_REQUEST"

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message, field=field)


class BodyTooLarge(BatonError):
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 413
    reason = "BODY_TOO_LARGE"


class UnsupportedMedia(BatonError):
    """The body has a content type or encoding that the gateway does not read."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 415
    reason = "UNSUPPORTED_MEDIA_TYPE"


class ContextTooLong(BatonError):
    """Prompt and answer together exceed the model's context."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reason = "CONTEXT_TOO_LONG"
    code = "context_length_exceeded"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field=field)


class UnknownModel(BatonError):
    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    reason = "UNKNOWN_MODEL"
    code = "model_not_found"

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        names = ", ".join(repr(name) for name in served) or "none at the moment"
        super().__init__(f"model {brief(model)!r} is not served here; served: {names}", field="model")


class Unauthenticated(BatonError):
    """The request carries no key, an unknown one, or several."""

    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    reason = "UNAUTHENTICATED"
    code = "invalid_api_key"


class Forbidden(BatonError):
    """The key is known, and may not do this."""

    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    reason = "FORBIDDEN"


class RateLimited(BatonError):
    """The tenant has no tokens left, or runs as many choices as it may; nothing of the request has run."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    reason = "RATE_LIMITED"
    code = "rate_limit_exceeded"


class Overloaded(BatonError):
    """Too much waits before this request; nothing of it has been computed. A later try may succeed."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    reason = "OVERLOADED"

    def __init__(self, message: str, *, wait_seconds: float, retry_after_seconds: float) -> None:
        details = {"wait_seconds": f"{wait_seconds:.1f}"}
        super().__init__(message, retry_after_seconds=retry_after_seconds, details=details)


class PoolTooSmall(BatonError):
    """The request is larger than every worker's pool. It can succeed only after a worker with a larger pool
    attaches."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reason = "POOL_TOO_SMALL"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{message}; shorten the prompt, ask for fewer tokens, or give the workers more pool_bytes")
        self.field = field


class ClassUnavailable(BatonError):
    """No worker is left of the class that the answer began in; the message names both fingerprints."""

    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 409
    reason = "CLASS_UNAVAILABLE"


class DeadlineExceeded(BatonError):
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    reason = "DEADLINE_EXCEEDED"


class Cancelled(BatonError):
    """The client went away or cancelled; only logs show this error."""

    grpc_status = grpc.StatusCode.CANCELLED
    http_status = 499
    reason = "CANCELLED"


class Unavailable(BatonError):
    """No worker can take the request now; a later try may succeed."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


class ReaderStalled(BatonError):
    """The client has taken nothing of its answer for too long."""

    grpc_status = grpc.StatusCode.ABORTED
    http_status = 408
    reason = "READER_STALLED"


class WorkersDied(BatonError):
    """Several workers died while they ran this request: it may be what kills them."""

    grpc_status = grpc.StatusCode.ABORTED
    http_status = 500
    reason = "WORKERS_DIED"


class Internal(BatonError):
    """A defect of the gateway; its log has the details under the same request id."""

    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500
    reason = "INTERNAL"
