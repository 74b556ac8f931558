"""Exports finished traces to an OpenTelemetry collector, over OTLP with gRPC, in a thread of its own.

The event loop only appends to a bounded queue. The thread makes the spans, encodes them (mesh/telemetry/otlp_bytes.py)
and sends them in batches. Between two traces it lets the event loop run, which otherwise would wait for the whole batch
to save some of the interpreter's switches. A collector that is slow or away costs spans, which are counted, never
time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import grpc

from mesh.telemetry.otlp_bytes import Batch
from mesh.telemetry.spans import Assemble

log = logging.getLogger("baton.traces")

SEND_SECONDS = 0.5  # how long a finished trace may wait for others before it is sent
EXPORT_SECONDS = 2.0  # how long a collector may take to accept a batch; then it is dropped
MOST_TRACES = 2048  # traces that wait; one more is dropped
READINGS = 8  # how often both clocks are read to find their offset
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

Send = Callable[[bytes], object]  # takes an ExportTraceServiceRequest; raises grpc.RpcError


class OtlpTelemetry:
    def __init__(self, send: Send, *, clock: Callable[[], float], share: float = 1.0) -> None:
        """`clock` is the one by which spans are measured."""
        self.share = share
        self.exported_spans = self.dropped_spans = 0  # since the start; dropped ones as far as they were made
        self.dropped_traces = 0  # traces that found the queue full, or could not be assembled
        self._send, self._offset_seconds = send, offset_seconds(clock, time.time)
        self._queue: deque[Assemble] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
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
        self._closing.set()
        self._wake.set()
        self._thread.join(2 * EXPORT_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._closing.wait(SEND_SECONDS)
            self._wake.clear()
            batch = Batch(self._offset_seconds)
            while self._queue:
                try:
                    for span in self._queue.popleft()():
                        batch.add(span)
                except Exception:
                    self.dropped_traces += 1
                    log.exception("a trace cannot be assembled")
                time.sleep(0)  # the event loop may run
            if batch.spans:
                self._deliver(batch)
            if self._closing.is_set() and not self._queue:
                return

    def _deliver(self, batch: Batch) -> None:
        try:
            self._send(batch.encoded())
        except grpc.RpcError as error:
            self.dropped_spans += batch.spans
            if not self._said:
                self._said = True
                log.warning("the collector at otlp_endpoint takes no spans, they are dropped: %s", error)
        else:
            self.exported_spans += batch.spans
            self._said = False


def open_telemetry(endpoint: str, *, clock: Callable[[], float] = time.monotonic, share: float = 1.0) -> OtlpTelemetry:
    """Telemetry that exports to the collector at `endpoint`. Event loops read the monotonic clock."""
    host = endpoint.removeprefix("http://").removeprefix("https://").rstrip("/")
    secure = endpoint.startswith("https://")
    channel = grpc.secure_channel(host, grpc.ssl_channel_credentials()) if secure else grpc.insecure_channel(host)
    export: Callable[..., object] = channel.unary_unary(METHOD)
    return OtlpTelemetry(lambda request: export(request, timeout=EXPORT_SECONDS), clock=clock, share=share)


def offset_seconds(clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Seconds to add to `clock` to get `wall`. The quickest of several readings counts: a process that is interrupted
    between two readings would shift all its spans against those of other processes."""
    readings = [(clock(), wall(), clock()) for _ in range(READINGS)]
    before, between, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return between - (before + after) / 2
