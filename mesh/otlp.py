"""Exports finished traces to an OpenTelemetry collector, over OTLP with gRPC, in a thread of its own.

The event loop only appends to a bounded queue. The thread makes the spans, encodes them as OTLP (each service as its
own resource) and sends them in batches. A collector that is slow or away costs spans, which are counted, never time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from mesh.semconv import SERVICE_NAME
from mesh.telemetry import Assemble, Attributes, SpanKind, SpanRecord

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

    def counts(self) -> dict[str, int]:
        return {
            "spans_exported": self.exported_spans,
            "spans_dropped": self.dropped_spans,
            "traces_dropped": self.dropped_traces,
        }

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
    by_service: dict[str, ScopeSpans] = {}
    request = ExportTraceServiceRequest()
    for span in spans:
        if span.service not in by_service:
            resource = request.resource_spans.add()
            _add(resource.resource.attributes, {SERVICE_NAME: span.service})
            by_service[span.service] = resource.scope_spans.add()
            by_service[span.service].scope.name = "baton"
        _fill(by_service[span.service].spans.add(), span, offset)
    return request


def _fill(made: Span, span: SpanRecord, offset: float) -> None:
    """Fields are filled in place: that takes a third of the time of building messages and copying them."""
    made.trace_id, made.span_id = span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big")
    if span.parent_id:
        made.parent_span_id = span.parent_id.to_bytes(8, "big")
    made.name, made.kind = span.name, _KINDS[span.kind]
    made.start_time_unix_nano = int((span.start_seconds + offset) * 1e9)
    made.end_time_unix_nano = int((span.end_seconds + offset) * 1e9)
    _add(made.attributes, span.attributes)
    for event in span.events:
        added = made.events.add()
        added.name, added.time_unix_nano = event.name, int((event.seconds + offset) * 1e9)
        _add(added.attributes, event.attributes)
    for link in span.links:
        linked = made.links.add()
        linked.trace_id, linked.span_id = link.trace_id.to_bytes(16, "big"), link.span_id.to_bytes(8, "big")
    if span.error:
        made.status.code, made.status.message = Status.STATUS_CODE_ERROR, span.error


def _add(pairs: Any, attributes: Attributes) -> None:
    for key, value in attributes.items():
        pair = pairs.add()
        pair.key = key
        if isinstance(value, bool):
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        elif isinstance(value, str):
            pair.value.string_value = value
        else:
            for item in value:
                pair.value.array_value.values.add().string_value = item
