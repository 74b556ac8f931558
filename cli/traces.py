"""A small OpenTelemetry collector in the process of `baton up` and `baton demo`: OTLP over gRPC in, traces out.

It keeps the spans of the last requests, so that a timeline shows what the services really exported. Where the user
configured an endpoint of their own, it is not started."""

import asyncio
from collections import OrderedDict
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from mesh.telemetry import Attribute, SpanRecord

KEPT_TRACES = 256
SETTLE_SECONDS = 0.7  # wait after a request's end: workers export their spans in batches


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.traces: OrderedDict[int, list[SpanRecord]] = OrderedDict()
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
                self.traces.move_to_end(span.trace_id)
        while len(self.traces) > KEPT_TRACES:
            self.traces.popitem(last=False)
        self._arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def finished(self, seen: set[int], timeout_seconds: float = 1e9) -> list[SpanRecord]:
        """The spans of the oldest finished request that is not in `seen`, once all have arrived; empty on time-out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while loop.time() < deadline:
            self._arrived.clear()
            for trace_id, spans in self.traces.items():
                if trace_id not in seen and any(span.name == "request" for span in spans):
                    await asyncio.sleep(SETTLE_SECONDS)
                    seen.add(trace_id)
                    return sorted(spans, key=lambda span: (span.start_seconds, -span.end_seconds))
            try:
                await asyncio.wait_for(self._arrived.wait(), deadline - loop.time())
            except TimeoutError:
                break
        return []


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
        )
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def _attributes(pairs: Any) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    pair: KeyValue
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "bool_value", "int_value", "double_value"):
            found[pair.key] = getattr(pair.value, kind)
    return found
