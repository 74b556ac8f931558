"""Errors as gRPC statuses with google.rpc details: always ErrorInfo with the reason, BadRequest where a field is wrong,
RetryInfo where a later try may succeed, QuotaFailure where a limit is exceeded."""

import asyncio
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from mesh.errors import BatonError

DOMAIN = "baton"


async def abort(context: Any, error: BatonError, request_id: str) -> NoReturn:
    """End the call with this error; never returns."""
    status: Any = rpc_status.to_status(status_of(error, request_id))
    metadata = (*status.trailing_metadata, ("x-request-id", request_id))
    try:
        await context.abort(status.code, status.details, metadata)
    except grpc.aio.InternalError as failed:  # nobody is there any more: the client has gone, or its deadline passed
        raise asyncio.CancelledError from failed
    raise AssertionError("abort returned")


def status_of(error: BatonError, request_id: str) -> status_pb2.Status:
    facts = error.details | {"request_id": request_id}
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after_seconds * 1000))
        details.append(retry)
    if error.grpc_status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        tenant = error.details.get("tenant")
        subject = error.reason if tenant is None else f"tenant:{tenant}"
        exceeded = error_details_pb2.QuotaFailure.Violation(subject=subject, description=error.message)
        details.append(error_details_pb2.QuotaFailure(violations=[exceeded]))
    packed = []
    for detail in details:
        wrapped = any_pb2.Any()
        wrapped.Pack(detail)
        packed.append(wrapped)
    return status_pb2.Status(code=error.grpc_status.value[0], message=error.message, details=packed)
