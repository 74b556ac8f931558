"""Health checks over gRPC (grpc.health.v1): Check, Watch and List, for every service of one server.

The servicer of grpcio-health-checking is not used: it has no List, and when one of two watchers of a service leaves,
the other one hears nothing more. A service is NOT_SERVING from the beginning until `set` says otherwise."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb

from baton.rpc.v1 import rpc_pb2

SERVICE = pb.DESCRIPTOR.services_by_name["Health"].full_name
MOST_LISTED = 100  # the protocol lets a server refuse List beyond this number of services


class HealthService:
    def __init__(self) -> None:
        self._status: dict[str, Any] = {}
        self._changed = asyncio.Event()  # replaced by a new one at every change
        self._closed = False

    def set(self, services: Iterable[str], serving: bool) -> None:
        if self._closed:
            return
        status = pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING
        self._change(dict.fromkeys(services, status))

    def close(self) -> None:
        """Every service is NOT_SERVING from now on; watchers see it, and their streams end."""
        self._closed = True
        self._change(dict.fromkeys(self._status, pb.HealthCheckResponse.NOT_SERVING))

    def handler(self) -> grpc.GenericRpcHandler:
        answer = pb.HealthCheckResponse.SerializeToString
        handlers: dict[str, Any] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, response_serializer=answer),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, response_serializer=answer),
            "List": grpc.unary_unary_rpc_method_handler(
                self._list,
                response_serializer=rpc_pb2.HealthListResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _change(self, status: Mapping[str, Any]) -> None:
        self._status.update(status)
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _check(self, raw: bytes, context: Any) -> pb.HealthCheckResponse:
        request = await _request(raw, context)
        status = self._status.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        return pb.HealthCheckResponse(status=status)

    async def _watch(self, raw: bytes, context: Any) -> AsyncIterator[pb.HealthCheckResponse]:
        request, last = await _request(raw, context), None
        while True:
            changed, closed = self._changed, self._closed  # another change may come while the status is sent
            status = self._status.get(request.service, pb.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                yield pb.HealthCheckResponse(status=status)
            last = status
            if closed:
                return
            await changed.wait()

    async def _list(self, _request: bytes, context: Any) -> rpc_pb2.HealthListResponse:
        if len(self._status) > MOST_LISTED:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MOST_LISTED} services")
        found = {name: rpc_pb2.HealthStatus(status=status) for name, status in self._status.items()}
        return rpc_pb2.HealthListResponse(statuses=found)


async def _request(raw: bytes, context: Any) -> pb.HealthCheckRequest:
    """gRPC's own deserializer would answer garbage with UNKNOWN, and log a traceback."""
    request = pb.HealthCheckRequest()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"these {len(raw)} bytes are no HealthCheckRequest")
    return request
