"""The spans that services export arrive in the collector as they were recorded, over real OTLP."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cli.traces import KEPT_TRACES, Collector
from mesh.otlp import open_telemetry
from mesh.telemetry import Telemetry

PATIENCE_SECONDS = 60.0  # a guard against hanging


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    await collector.start()
    yield collector
    await collector.close()


def telemetry(collector: Collector, service: str) -> Telemetry:
    return open_telemetry(service, f"http://{collector.address}", asyncio.get_running_loop().time)


async def test_spans_of_all_services_meet_in_one_trace(collector: Collector) -> None:
    gateway, prefill = telemetry(collector, "gateway"), telemetry(collector, "prefill-0")
    root = gateway.begin("request", None, 1.0)
    prefill.record("prefill.compute", root.traceparent, 1.25, 1.5, tokens=7)
    root.end(2.0)
    await asyncio.to_thread(prefill.close)
    await asyncio.to_thread(gateway.close)
    request, phase = await collector.finished(set(), PATIENCE_SECONDS)
    assert (request.service, request.name, request.parent_id) == ("gateway", "request", 0)
    assert (phase.service, phase.name, phase.attributes) == ("prefill-0", "prefill.compute", {"tokens": 7})
    assert phase.parent_id == request.span_id
    assert phase.start_seconds - request.start_seconds == pytest.approx(0.25, abs=0.05)
    assert request.end_seconds - request.start_seconds == pytest.approx(1.0, abs=1e-3)


async def test_a_request_comes_once_and_only_when_it_is_over(collector: Collector) -> None:
    gateway = telemetry(collector, "gateway")
    seen: set[int] = set()
    root = gateway.begin("request", None, 1.0)
    gateway.record("queue", root.traceparent, 1.0, 1.1)
    assert await collector.finished(seen, 1.0) == []
    root.end(2.0)
    assert len(await collector.finished(seen, PATIENCE_SECONDS)) == 2
    assert await collector.finished(seen, 0.2) == []
    await asyncio.to_thread(gateway.close)


async def test_old_traces_make_room(collector: Collector) -> None:
    gateway = telemetry(collector, "gateway")
    for _ in range(KEPT_TRACES + 10):
        gateway.begin("request", None, 1.0).end(2.0)
    await asyncio.to_thread(gateway.close)
    assert len(collector.traces) == KEPT_TRACES
