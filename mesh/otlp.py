"""Exports finished traces to an OpenTelemetry collector, over OTLP with gRPC, in a thread of its own.

The event loop only appends to a bounded queue. The thread makes the spans, encodes them as OTLP (each service as its
own resource) and sends them in batches. A collector that is slow or away costs spans, which are counted, never time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from mesh.semconv import SERVICE_NAME
from mesh.telemetry import Assemble, Attribute, Attributes, SpanKind, SpanRecord

log = logging.getLogger("baton.traces")

SEND_SECONDS = 0.3  # how long a finished trace may wait for others before it is sent
EXPORT_SECONDS = 2.0  # how long a collector may take to accept a batch; then it is dropped
MOST_TRACES = 2048  # traces that wait; one more is dropped
READINGS = 8  # how often both clocks are read to find their offset
_KINDS = {
    SpanKind.INTERNAL: Span.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: Span.SPAN_KIND_SERVER,
    SpanKind.CLIENT: Span.SPAN_KIND_CLIENT,
}

Send = Callable[[ExportTraceServiceRequest], object]  # raises grpc.RpcError


class OtlpTelemetry:
    def __init__(self, send: Send, *, clock: Callable[[], float], share: float = 1.0) -> None:
        """`clock` is the one by which spans are measured."""
        self.share = share
        self.exported_spans = self.dropped_spans = 0  # since the start; dropped ones as far as they were made
        self.dropped_traces = 0  # traces that found the queue full, or could not be assembled
        self._send, self._offset_seconds = send, offset_seconds(clock, time.time)
        self._queue: deque[Assemble] = deque()
        self._wake, self._closing = threading.Event(), False
        self._said = False  # the log has said that the collector does not take spans
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def export(self, assemble: Assemble) -> None:
        if len(self._queue) >= MOST_TRACES:
            self.dropped_traces += 1
            return
        self._queue.append(assemble)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(2 * EXPORT_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if not self._closing:
                time.sleep(SEND_SECONDS)
            self._wake.clear()
            spans = list[SpanRecord]()
            while self._queue:
                try:
                    spans.extend(self._queue.popleft()())
                except Exception:
                    self.dropped_traces += 1
                    log.exception("a trace cannot be assembled")
            if spans:
                self._deliver(spans)
            if self._closing and not self._queue:
                return

    def _deliver(self, spans: Sequence[SpanRecord]) -> None:
        try:
            self._send(encode(spans, self._offset_seconds))
        except grpc.RpcError as error:
            self.dropped_spans += len(spans)
            if not self._said:
                self._said = True
                log.warning("the collector at otlp_endpoint takes no spans, they are dropped: %s", error)
        else:
            self.exported_spans += len(spans)
            self._said = False


def open_telemetry(endpoint: str, *, clock: Callable[[], float] = time.monotonic, share: float = 1.0) -> OtlpTelemetry:
    """Telemetry that exports to the collector at `endpoint`. Event loops read the monotonic clock."""
    host = endpoint.removeprefix("http://").removeprefix("https://").rstrip("/")
    secure = endpoint.startswith("https://")
    channel = grpc.secure_channel(host, grpc.ssl_channel_credentials()) if secure else grpc.insecure_channel(host)
    stub = TraceServiceStub(channel)
    return OtlpTelemetry(lambda request: stub.Export(request, timeout=EXPORT_SECONDS), clock=clock, share=share)


def offset_seconds(clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Seconds to add to `clock` to get `wall`. The quickest of several readings counts: a process that is interrupted
    between two readings would shift all its spans against those of other processes."""
    readings = [(clock(), wall(), clock()) for _ in range(READINGS)]
    before, between, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return between - (before + after) / 2


def encode(spans: Iterable[SpanRecord], offset: float) -> ExportTraceServiceRequest:
    """The spans in OTLP; `offset`: seconds to add to their times for the wall clock."""
    by_service: dict[str, ResourceSpans] = {}
    request = ExportTraceServiceRequest()
    for span in spans:
        if span.service not in by_service:
            resource = by_service[span.service] = request.resource_spans.add()
            resource.resource.attributes.extend(_attributes({SERVICE_NAME: span.service}))
            resource.scope_spans.add().scope.name = "baton"
        by_service[span.service].scope_spans[0].spans.append(_span(span, offset))
    return request


def _span(span: SpanRecord, offset: float) -> Span:
    def nanoseconds(seconds: float) -> int:
        return int((seconds + offset) * 1e9)

    return Span(
        trace_id=span.trace_id.to_bytes(16, "big"),
        span_id=span.span_id.to_bytes(8, "big"),
        parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=nanoseconds(span.start_seconds),
        end_time_unix_nano=nanoseconds(span.end_seconds),
        attributes=_attributes(span.attributes),
        events=[
            Span.Event(
                name=event.name,
                time_unix_nano=nanoseconds(event.seconds),
                attributes=_attributes(event.attributes),
            )
            for event in span.events
        ],
        links=[
            Span.Link(trace_id=link.trace_id.to_bytes(16, "big"), span_id=link.span_id.to_bytes(8, "big"))
            for link in span.links
        ],
        status=Status(code=Status.STATUS_CODE_ERROR, message=span.error) if span.error else None,
    )


def _attributes(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: Attribute) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=item) for item in value]))
