"""Spans arrive in a collector as they were made, over real OTLP; one that is slow or away costs spans, never time."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from mesh.telemetry.otlp import MOST_TRACES, OtlpTelemetry, open_telemetry
from mesh.telemetry.spans import SpanEvent, SpanKind, SpanRecord, TraceContext
from tests.harness.collector import Collector

PATIENCE_SECONDS = 60.0  # a guard against hanging


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    await collector.start()
    yield collector
    await collector.close()


def trace(number: int) -> list[SpanRecord]:
    root = SpanRecord(
        "gateway",
        "POST /v1/completions",
        number,
        2,
        0,
        1.0,
        2.0,
        {"http.response.status_code": 500, "gen_ai.response.finish_reasons": ("stop", "length"), "x": True, "y": 0.5},
        kind=SpanKind.SERVER,
        error="INTERNAL",
    )
    phase = SpanRecord(
        "prefill-0",
        "compute",
        number,
        3,
        2,
        1.25,
        1.5,
        {"baton.tokens": 7},
        (SpanEvent("chunk", 1.375, {"baton.tokens": 7}),),
        (TraceContext(number, 9),),
    )
    return [root, phase]


async def test_a_trace_arrives_whole_with_a_resource_for_each_service(collector: Collector) -> None:
    telemetry = open_telemetry(f"http://{collector.address}", clock=asyncio.get_running_loop().time)
    telemetry.export(lambda: trace(5))
    await asyncio.to_thread(telemetry.close)
    root, phase = (await collector.wait_for(1, PATIENCE_SECONDS))[5]
    made_root, made_phase = trace(5)
    assert (root.service, root.name, root.parent_id, root.kind) == ("gateway", made_root.name, 0, SpanKind.SERVER)
    assert root.attributes == made_root.attributes and root.error == "INTERNAL"
    assert (phase.service, phase.parent_id, phase.attributes) == ("prefill-0", root.span_id, {"baton.tokens": 7})
    assert phase.links == made_phase.links and [event.name for event in phase.events] == ["chunk"]
    assert phase.start_seconds - root.start_seconds == pytest.approx(0.25, abs=1e-3)
    assert root.end_seconds - root.start_seconds == pytest.approx(1.0, abs=1e-3)
    assert telemetry.exported_spans == 2 and telemetry.dropped_spans == telemetry.dropped_traces == 0


async def test_a_span_has_the_wall_clocks_time(collector: Collector) -> None:
    clock = asyncio.get_running_loop().time
    telemetry = open_telemetry(f"http://{collector.address}", clock=clock)
    now, wall = clock(), time.time()
    telemetry.export(lambda: [SpanRecord("gateway", "x", 6, 2, 0, now, now)])
    await asyncio.to_thread(telemetry.close)
    (span,) = (await collector.wait_for(1, PATIENCE_SECONDS))[6]
    assert span.start_seconds == pytest.approx(wall, abs=0.5)


def test_a_collector_that_is_away_delays_nothing_and_its_spans_are_counted() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        telemetry = open_telemetry(f"http://127.0.0.1:{unheard.getsockname()[1]}")
        telemetry.export(lambda: trace(1))
        telemetry.close()
    assert (telemetry.exported_spans, telemetry.dropped_spans) == (0, 2)


def test_traces_beyond_the_queue_are_dropped_and_counted() -> None:
    goes_on = threading.Event()

    def send(request: object) -> None:
        goes_on.wait(PATIENCE_SECONDS)

    telemetry = OtlpTelemetry(send, clock=time.monotonic)
    for number in range(MOST_TRACES + 20):
        telemetry.export(lambda number=number: trace(number + 1))  # type: ignore[misc]
    dropped = telemetry.dropped_traces
    goes_on.set()
    telemetry.close()
    assert dropped > 0
    assert telemetry.exported_spans == 2 * (MOST_TRACES + 20 - dropped)


def test_a_trace_that_cannot_be_made_costs_only_itself() -> None:
    sent = list[object]()
    telemetry = OtlpTelemetry(sent.append, clock=time.monotonic)

    def broken() -> list[SpanRecord]:
        raise RuntimeError("a defect")

    telemetry.export(broken)
    telemetry.export(lambda: trace(1))
    telemetry.close()
    assert len(sent) == 1 and (telemetry.exported_spans, telemetry.dropped_traces) == (2, 1)


def test_a_refusal_by_the_collector_is_counted() -> None:
    def refuse(request: object) -> None:
        raise grpc.RpcError("full")

    telemetry = OtlpTelemetry(refuse, clock=time.monotonic)
    telemetry.export(lambda: trace(1))
    telemetry.close()
    assert telemetry.dropped_spans == 2
