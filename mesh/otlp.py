"""Exports spans: OpenTelemetry's SDK behind the small interface of `mesh/telemetry.py`.

Services record times of the event loop's clock. This module measures the offset to the wall clock once, at start, so
that all spans of a process keep their distances. The SDK's own thread batches and sends spans, so recording one costs
microseconds and never waits."""

import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, set_span_in_context

from mesh.telemetry import Attribute, Root, Telemetry, make_traceparent, parse_traceparent

SEND_MILLISECONDS = 300  # how long a finished span may wait for others before it is sent
READINGS = 8  # how often both clocks are read to find their offset
EXPORT_SECONDS = 2  # how long a collector may take to accept spans; then they are dropped


def open_telemetry(service: str, endpoint: str, clock: Callable[[], float] = time.monotonic) -> Telemetry:
    """Telemetry that exports to the collector at `endpoint`. `clock` is the one by which services record times; event
    loops read the monotonic clock."""
    host = endpoint.removeprefix("http://").removeprefix("https://")
    insecure = not endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint=host, insecure=insecure, timeout=EXPORT_SECONDS)
    counting = CountingExporter(exporter)
    processor = BatchSpanProcessor(counting, schedule_delay_millis=SEND_MILLISECONDS)
    return OtlpTelemetry(service, processor, clock, lambda: counting.dropped)


class CountingExporter(SpanExporter):
    """Counts the spans that no collector has accepted."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter, self.dropped = exporter, 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.dropped += 0 if result is SpanExportResult.SUCCESS else len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class OtlpTelemetry:
    def __init__(
        self,
        service: str,
        processor: SpanProcessor,
        clock: Callable[[], float],
        dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self._dropped = dropped
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("baton")
        self._offset_seconds = offset_seconds(clock, time.time)

    def begin(self, name: str, traceparent: str | None, start_seconds: float, **attributes: Attribute) -> Root:
        return _Root(self, self._start(name, parse_traceparent(traceparent), start_seconds, attributes))

    def record(
        self, name: str, traceparent: str, start_seconds: float, end_seconds: float, **attributes: Attribute
    ) -> None:
        parent = parse_traceparent(traceparent)
        if parent is not None:
            self._start(name, parent, start_seconds, attributes).end(self.nanoseconds(end_seconds))

    @property
    def dropped(self) -> int:
        return self._dropped()

    def close(self) -> None:
        self._provider.shutdown()

    def nanoseconds(self, loop_seconds: float) -> int:
        return int((loop_seconds + self._offset_seconds) * 1e9)

    def _start(
        self, name: str, parent: SpanContext | None, start_seconds: float, attributes: dict[str, Attribute]
    ) -> Span:
        context = set_span_in_context(NonRecordingSpan(parent)) if parent else None
        return self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=self.nanoseconds(start_seconds)
        )


def offset_seconds(clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Seconds to add to `clock` to get `wall`. The quickest of several readings counts: a process that is interrupted
    between two readings would shift all its spans against those of other processes."""
    readings = [(clock(), wall(), clock()) for _ in range(READINGS)]
    before, between, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return between - (before + after) / 2


class _Root:
    def __init__(self, telemetry: OtlpTelemetry, span: Span) -> None:
        self._telemetry, self._span = telemetry, span
        self.traceparent = make_traceparent(span.get_span_context())

    def end(self, end_seconds: float, **attributes: Attribute) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)
            self._span.end(self._telemetry.nanoseconds(end_seconds))
