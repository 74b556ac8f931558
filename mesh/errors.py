"""The closed list of errors that reach a client, each mapped once to a gRPC status, an HTTP status and a reason.

Raise early, where the field or the worker is known; caught at the edge only (gateway/http.py, gateway/grpc_api.py).
`message` says what is wrong and what the caller can do; `details` are facts for machines, never secrets."""

from collections.abc import Mapping
from typing import ClassVar

import grpc


class BatonError(Exception):
    """What every error of the list has; raise one of the subclasses."""

    grpc_status: ClassVar[grpc.StatusCode]
    http_status: ClassVar[int]
    reason: ClassVar[str]  # stable, for machines

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
        self.field = field  # of the request, as the client spelled it
        self.retry_after_seconds = retry_after_seconds  # None: trying the same again does not help
        self.details: dict[str, str] = dict(details or {})


class InvalidRequest(BatonError):
    """A field is wrong by itself or beside another."""

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
    """A body in a form that is not read here."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 415
    reason = "UNSUPPORTED_MEDIA_TYPE"


class ContextTooLong(BatonError):
    """Prompt and answer together exceed the model's context."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reason = "CONTEXT_TOO_LONG"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field=field)


class UnknownModel(BatonError):
    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    reason = "UNKNOWN_MODEL"

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        names = ", ".join(repr(name) for name in served) or "none at the moment"
        super().__init__(f"model {model!r} is not served here; served: {names}", field="model")


class Unauthenticated(BatonError):
    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    reason = "UNAUTHENTICATED"


class PoolTooSmall(BatonError):
    """Larger than any worker's pool: trying again helps only when somebody starts a larger one."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reason = "POOL_TOO_SMALL"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{message}; shorten the prompt or lower max_tokens, or give the workers more pool_bytes")
        self.field = field


class ClassUnavailable(BatonError):
    """No worker of the class that the answer began in is left; the message names both fingerprints."""

    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 503
    reason = "CLASS_UNAVAILABLE"


class DeadlineExceeded(BatonError):
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    reason = "DEADLINE_EXCEEDED"


class Cancelled(BatonError):
    """The client went away or cancelled; seen in logs only."""

    grpc_status = grpc.StatusCode.CANCELLED
    http_status = 499
    reason = "CANCELLED"


class Unavailable(BatonError):
    """No worker can take the request now; later may differ."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


class WorkersDied(BatonError):
    """Several workers died while they ran this request: it may be what kills them."""

    grpc_status = grpc.StatusCode.ABORTED
    http_status = 500
    reason = "WORKERS_DIED"


class Internal(BatonError):
    """A defect of ours; the log has more under the same request id."""

    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500
    reason = "INTERNAL"
