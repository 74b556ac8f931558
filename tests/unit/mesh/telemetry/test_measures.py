"""A worker's measures: what it counts, and when its gateways get it."""

import asyncio
import itertools
from random import Random
from typing import Any

from mesh.messages.message import Heartbeat, Message
from mesh.messages.reports import Distribution, Hello, Measure, Measures
from mesh.network.interface import Channel
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.attach import MEASURE_SECONDS
from mesh.telemetry.measures import Histogram, MeasureBook
from mesh.timing.loop_delay import watch_delay
from tests.sim.loop import virtual
from tests.unit.mesh.attachments import HELLO, attachments


def test_a_value_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 2, 5, 6, 600):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1, 2] and histogram.sum == 616


def test_counts_counters_and_histograms_travel_in_one_message() -> None:
    book = MeasureBook()
    book.add("bytes/shm/ok", 10)
    book.add("bytes/shm/ok", 5)
    book.histogram("seconds", (1,)).observe(0.5)
    assert book.histogram("seconds", (1,)) is book.histogram("seconds", (1,))
    expected = Measures((Measure("steps", 3), Measure("bytes/shm/ok", 15)), (Distribution("seconds", (1, 0), 0.5),))
    assert book.message({"steps": 3}) == expected


@virtual
async def test_gateways_get_measures_at_once_and_then_when_they_change_but_not_more_than_once_a_second() -> None:
    got = list[tuple[float, Message]]()
    loop, count = asyncio.get_running_loop(), 0
    network = MemoryNetwork(Random(1))
    worker = attachments(network.host("worker"), measures=lambda: Measures((Measure("steps", count),), ()))
    await worker.listen("worker")
    pushing = asyncio.ensure_future(worker.push_measures(lambda delay: None))
    stream = await network.host("gateway").dial("worker", Channel.ATTACH)

    async def receive() -> None:
        while True:
            message = await stream.receive()
            stream.send(Heartbeat())
            if not isinstance(message, Heartbeat):
                got.append((loop.time(), message))

    receiving = asyncio.ensure_future(receive())
    for _ in range(30):  # three seconds of steps
        await asyncio.sleep(0.1)
        count += 1
    await asyncio.sleep(5)  # nothing changes
    for task in (pushing, receiving):
        task.cancel()
    await asyncio.gather(pushing, receiving, return_exceptions=True)
    await worker.aclose()
    assert got[0][1] == HELLO
    times, messages = zip(*got[1:], strict=True)
    values = [message.values[0].value for message in messages]
    assert values[0] == 0 and values[-1] == 30 and values == sorted(set(values))
    gaps = [after - before for before, after in itertools.pairwise(times[1:])]
    assert len(values) in (4, 5) and all(gap > MEASURE_SECONDS * 0.99 for gap in gaps)


@virtual
async def test_an_idle_worker_tells_nothing_until_its_loop_has_stood_still() -> None:
    delays = list[float]()
    loop: Any = asyncio.get_running_loop()
    network = MemoryNetwork(Random(1))
    worker = attachments(network.host("worker"), measures=lambda: Measures((Measure("delays", len(delays)),), ()))
    await worker.listen("worker")
    pushing = asyncio.ensure_future(worker.push_measures(delays.append))
    stream = await network.host("gateway").dial("worker", Channel.ATTACH)
    for first in (await stream.receive(), await stream.receive()):
        assert isinstance(first, Hello | Measures)
    await asyncio.sleep(1.5)  # the first look finds what nobody has told
    told = len(delays)
    await asyncio.sleep(1.6)
    assert len(delays) == told
    loop.stand_still(1.5)
    await asyncio.sleep(0.5)
    assert len(delays) == told + 1 and delays[-1] > 0.1
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    await worker.aclose()


@virtual
async def test_a_worker_without_metrics_pushes_nothing_and_watches_nothing() -> None:
    worker = attachments(MemoryNetwork(Random(1)).host("worker"), gateways=())
    await asyncio.wait_for(worker.push_measures(lambda delay: None), 1)


async def test_a_blocked_loop_is_seen_as_delay() -> None:
    seen, now = list[float](), 0.0
    loop = asyncio.get_running_loop()
    loop.time = lambda: now  # type: ignore[method-assign]
    watch = asyncio.ensure_future(watch_delay(seen.append, tick_seconds=0.1))
    for step in (0.1, 0.6):  # the second time half a second passes in which nothing else runs
        for _ in range(4):
            await asyncio.sleep(0)
        now += step
    for _ in range(4):
        await asyncio.sleep(0)
    watch.cancel()
    assert [round(delay, 2) for delay in seen] == [0.0, 0.5]
