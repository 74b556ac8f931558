"""A small OpenTelemetry collector inside a test: OTLP over gRPC in, traces out."""

import asyncio
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from mesh.telemetry.spans import Attribute, SpanEvent, SpanKind, SpanRecord, TraceContext

_KINDS = {
    Span.SPAN_KIND_INTERNAL: SpanKind.INTERNAL,
    Span.SPAN_KIND_SERVER: SpanKind.SERVER,
    Span.SPAN_KIND_CLIENT: SpanKind.CLIENT,
}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.traces: dict[int, list[SpanRecord]] = {}  # by trace id; times are seconds since 1970
        self.address = ""
        self._server: grpc.aio.Server | None = None
        self._arrived = asyncio.Event()

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"{address.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    async def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource_spans in request.resource_spans:
            for span in spans_of(resource_spans):
                self.traces.setdefault(span.trace_id, []).append(span)
        self._arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def wait_for(self, traces: int, timeout_seconds: float) -> dict[int, list[SpanRecord]]:
        """All traces, once there are so many, or after the time-out. A trace arrives whole."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while len(self.traces) < traces:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        return self.traces


def spans_of(resource_spans: ResourceSpans) -> list[SpanRecord]:
    service = str(_attributes(resource_spans.resource.attributes).get("service.name", "?"))
    return [
        SpanRecord(
            service=service,
            name=span.name,
            trace_id=int.from_bytes(span.trace_id, "big"),
            span_id=int.from_bytes(span.span_id, "big"),
            parent_id=int.from_bytes(span.parent_span_id, "big"),
            start_seconds=span.start_time_unix_nano / 1e9,
            end_seconds=span.end_time_unix_nano / 1e9,
            attributes=_attributes(span.attributes),
            events=tuple(
                SpanEvent(event.name, event.time_unix_nano / 1e9, _attributes(event.attributes))
                for event in span.events
            ),
            links=tuple(
                TraceContext(int.from_bytes(link.trace_id, "big"), int.from_bytes(link.span_id, "big"))
                for link in span.links
            ),
            kind=_KINDS[span.kind],
            error=span.status.message if span.status.code == Status.STATUS_CODE_ERROR else "",
        )
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def _attributes(pairs: Any) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    pair: KeyValue
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind == "array_value":
            found[pair.key] = tuple(value.string_value for value in pair.value.array_value.values)
        elif kind in ("string_value", "bool_value", "int_value", "double_value"):
            found[pair.key] = getattr(pair.value, kind)
    return found
