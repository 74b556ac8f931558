"""Spans keep their parents, their times and their service in every implementation of Telemetry."""

import socket
import time

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mesh.otlp import OtlpTelemetry, open_telemetry
from mesh.telemetry import RecordingTelemetry, Silent, make_traceparent, parse_traceparent

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_survives_the_round_trip() -> None:
    context = parse_traceparent(CLIENT)
    assert context is not None and make_traceparent(context) == CLIENT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        CLIENT.upper(),
        CLIENT + "-more",
        "ff" + CLIENT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str | None) -> None:
    assert parse_traceparent(text) is None


def test_a_later_version_may_carry_more() -> None:
    assert parse_traceparent("01" + CLIENT[2:] + "-more") is not None


def test_phases_of_every_service_lie_under_the_root() -> None:
    gateway = RecordingTelemetry("gateway")
    prefill = gateway.sibling("prefill")
    root = gateway.begin("request", CLIENT, 1.0, model="tiny")
    prefill.record("prefill.compute", root.traceparent, 1.5, 2.0, tokens=7)
    root.end(3.0, tokens=9)
    phase, request = gateway.spans
    assert (phase.service, phase.name, phase.start_seconds, phase.end_seconds) == (
        "prefill",
        "prefill.compute",
        1.5,
        2.0,
    )
    assert phase.parent_id == request.span_id and phase.trace_id == request.trace_id
    assert f"{request.parent_id:016x}" == CLIENT[36:52]
    assert request.attributes == {"model": "tiny", "tokens": 9}


def test_a_root_ends_once() -> None:
    telemetry = RecordingTelemetry()
    root = telemetry.begin("request", None, 0.0)
    root.end(1.0)
    root.end(2.0)
    assert [span.end_seconds for span in telemetry.spans] == [1.0]


def test_equal_runs_record_equal_spans() -> None:
    def run() -> RecordingTelemetry:
        telemetry = RecordingTelemetry()
        root = telemetry.begin("request", None, 0.0)
        telemetry.record("queue", root.traceparent, 0.0, 0.5)
        root.end(1.0)
        return telemetry

    assert run().spans == run().spans


def test_exported_spans_keep_parent_times_and_attributes() -> None:
    exporter = InMemorySpanExporter()
    telemetry = OtlpTelemetry("gateway", SimpleSpanProcessor(exporter), clock=lambda: 100.0)
    root = telemetry.begin("request", CLIENT, 101.0)
    telemetry.record("queue", root.traceparent, 101.25, 101.5, waiting=3)
    root.end(104.0, tokens=9)
    root.end(105.0)
    telemetry.close()
    queue, request = exporter.get_finished_spans()
    assert queue.parent is not None and request.parent is not None
    assert queue.context is not None and request.context is not None
    assert queue.parent.span_id == request.context.span_id
    assert f"{request.parent.span_id:016x}" == CLIENT[36:52]
    assert queue.start_time is not None and queue.end_time is not None
    assert request.start_time is not None and request.end_time is not None
    assert queue.end_time - queue.start_time == pytest.approx(0.25e9, abs=1000)
    assert request.end_time - request.start_time == pytest.approx(3e9, abs=1000)
    assert queue.start_time - request.start_time == pytest.approx(0.25e9, abs=1000)
    assert dict(queue.attributes or {}) == {"waiting": 3}
    assert request.resource.attributes["service.name"] == "gateway"


def test_a_phase_without_a_trace_is_dropped_quietly() -> None:
    exporter = InMemorySpanExporter()
    telemetry = OtlpTelemetry("prefill", SimpleSpanProcessor(exporter), clock=lambda: 0.0)
    telemetry.record("prefill.compute", "", 0.0, 1.0)
    telemetry.close()
    assert exporter.get_finished_spans() == ()


def test_silent_telemetry_records_nothing_and_passes_the_clients_trace_on() -> None:
    telemetry = Silent()
    assert telemetry.begin("request", CLIENT, 0.0).traceparent == CLIENT
    assert telemetry.begin("request", None, 0.0).traceparent == ""


def test_a_collector_that_is_not_there_neither_blocks_nor_raises() -> None:
    with socket.socket() as unheard:  # bound, never listening
        unheard.bind(("127.0.0.1", 0))
        telemetry = open_telemetry("gateway", f"http://127.0.0.1:{unheard.getsockname()[1]}")
        telemetry.begin("request", None, 0.0).end(1.0)
        before = time.monotonic()
        telemetry.close()
        assert time.monotonic() - before < 60.0
