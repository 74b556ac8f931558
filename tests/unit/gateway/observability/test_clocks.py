"""The offset of a worker's clock: the quickest round trip counts, and it is measured again."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.workers.clocks import PROBES, REPEAT_SECONDS, WorkerClock
from mesh.messages.orders import ClockProbe
from mesh.messages.reports import ClockReading
from tests.sim.loop import virtual


class FarWorker:
    """Its clock is `ahead` of the gateway's; each probe takes the next two delays, there and back."""

    def __init__(self, ahead: float, delays: Iterator[tuple[float, float]]) -> None:
        self.ahead, self.probes = ahead, 0
        self._delays = delays
        self.clock = WorkerClock(self.probe)

    def probe(self, probe: ClockProbe) -> None:
        self.probes += 1
        loop = asyncio.get_running_loop()
        there, back = next(self._delays)
        reading = ClockReading(probe.number, loop.time() + there + self.ahead)
        loop.call_later(there + back, self.clock.read, reading)


@virtual
async def test_the_quickest_round_trip_counts() -> None:
    delays = [(0.1, 0.0), (0.05, 0.001), (0.001, 0.001), (0.2, 0.01), (0.0, 0.1)]
    worker = FarWorker(5.0, iter(delays))
    worker.clock.start()
    await asyncio.sleep(1.0)
    assert worker.clock.offset_seconds == pytest.approx(-5.0) and worker.probes == PROBES
    assert worker.clock.error_seconds == pytest.approx(0.001)
    worker.clock.stop()


@virtual
async def test_the_first_answer_counts_until_there_are_more() -> None:
    worker = FarWorker(5.0, iter([(0.1, 0.0), (9.0, 0.0)]))
    worker.clock.start()
    await asyncio.sleep(0.2)
    assert worker.clock.offset_seconds == pytest.approx(-5.0, abs=0.051)
    worker.clock.stop()


@virtual
async def test_a_clock_that_drifts_is_measured_again() -> None:
    worker = FarWorker(5.0, iter([(0.001, 0.001)] * 3 * PROBES))
    worker.clock.start()
    await asyncio.sleep(1.0)
    worker.ahead = 5.25
    await asyncio.sleep(REPEAT_SECONDS)
    assert worker.clock.offset_seconds == pytest.approx(-5.25)
    worker.clock.stop()
    await asyncio.sleep(3 * REPEAT_SECONDS)
    assert worker.probes == 2 * PROBES


@virtual
async def test_an_answer_of_an_earlier_measurement_is_dropped() -> None:
    clock = WorkerClock(lambda probe: None)
    clock.start()
    clock.read(ClockReading(0, 77.0))
    assert clock.error_seconds is None and clock.offset_seconds == 0.0
    clock.stop()
