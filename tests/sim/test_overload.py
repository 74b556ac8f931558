"""More load than the mesh can serve: what is let in is served in time, the rest is refused before it costs anything."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from gateway.attaching.service import Gateway
from gateway.routing.router import Local
from mesh.errors import Overloaded
from mesh.messages.jobs import Sampling
from mesh.messages.reports import Load, Register
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual
from tests.sim.overload import (
    QUEUE_SECONDS,
    LoadOutcome,
    TimedClient,
    come,
    noted,
    overloaded_cluster,
    run_load,
)

CAPACITY = 10.0  # requests per second, about
SECONDS = 8.0
SHORT_OF = {"prefill": {"max_batch": 32}, "places": {"max_batch": 4}, "pages": {"pages": 80}}


def load(times: float, seconds: float = SECONDS, **more: float) -> LoadOutcome:
    async def main() -> LoadOutcome:
        cluster = overloaded_cluster(**more)  # type: ignore[arg-type]
        await cluster.start(1, 1)
        return await run_load(cluster, times * CAPACITY, seconds)

    return run_virtual(main())


def test_three_and_ten_times_the_load_leave_goodput_where_it_was() -> None:
    peak = max(load(times).goodput for times in (0.8, 1.0))
    for times, seconds in ((3, SECONDS), (10, SECONDS / 2)):
        outcome = load(times, seconds)
        assert outcome.goodput >= 0.9 * peak
        assert outcome.wasted <= 0.02
        assert outcome.success_ratio <= 2.0
        assert outcome.refused > (1 - 1.5 / times) * len(outcome.clients)


def test_without_the_limit_goodput_breaks_down() -> None:
    """Negative control: everybody waits, and nobody is served in time."""
    outcome = load(3, 12.0, queue_seconds=0.0)
    assert outcome.refused == 0
    assert outcome.goodput < 0.6 * CAPACITY


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_whatever_is_short_the_requests_that_are_let_in_are_served_in_time(short_of: str) -> None:
    outcome = load(3, **SHORT_OF[short_of])
    let_in = [each for each in outcome.clients if each.client is not None]
    assert sum(each.good for each in let_in) >= 0.85 * len(let_in) > 0
    assert outcome.wasted <= 0.02
    assert outcome.success_ratio <= 2.0


@virtual
async def test_after_an_overload_that_everybody_leaves_the_next_request_is_served_at_once() -> None:
    cluster = await overloaded_cluster().start(1, 1)
    random, clients = Random(1), list[TimedClient]()
    for _ in range(600):
        await asyncio.sleep(random.expovariate(3 * CAPACITY))
        clients.append(come(cluster, random))
    for each in clients:
        if each.client is not None:
            each.client.handle.cancel()
    await asyncio.sleep(0.1)
    assert cluster.gateway.admission.wait_seconds("sim") == 0.0
    began, times = asyncio.get_running_loop().time(), list[float]()
    last = cluster.ask((1, 2, 3, 4), reads=noted(times))
    assert await cluster.until(lambda: last.ended, 5.0)
    assert times[0] - began < 0.3
    assert await cluster.finish() == []


@virtual
async def test_before_any_speed_is_measured_some_of_a_crowd_are_let_in_and_some_are_not() -> None:
    cluster = await overloaded_cluster().start(1, 1)
    random = Random(1)
    crowd = [come(cluster, random) for _ in range(500)]
    let_in = [each for each in crowd if each.client is not None]
    assert 20 < len(let_in) < 400
    assert await cluster.until(lambda: all(each.client.ended for each in let_in if each.client), 60.0)
    late = [each for each in let_in if each.client and isinstance(each.client.error, Overloaded)]
    assert all(not each.times for each in late), "nothing of a request that is given back was computed"
    assert all(each.times[0] - each.came_seconds < 2 * QUEUE_SECONDS + 1 for each in let_in if each.served)
    assert await cluster.finish() == []


async def _busy(cluster: Cluster) -> None:
    """The mesh has a queue of about a second."""
    await cluster.start(1, 1)
    random = Random(1)
    for _ in range(60):
        await asyncio.sleep(random.expovariate(2 * CAPACITY))
        come(cluster, random)
    assert await cluster.until(lambda: cluster.gateway.admission.wait_seconds("sim") < QUEUE_SECONDS)


@virtual
async def test_a_request_that_would_wait_beyond_its_deadline_is_refused_at_once() -> None:
    cluster = overloaded_cluster()
    await _busy(cluster)
    wait = cluster.gateway.admission.wait_seconds("sim")
    assert 0.3 < wait
    with pytest.raises(Overloaded, match="deadline") as refused:
        cluster.ask((1, 2, 3), deadline_seconds=wait / 2)
    assert refused.value.retry_after_seconds is not None
    patient = cluster.ask((1, 2, 3), deadline_seconds=60.0)
    assert await cluster.finish() == []
    assert patient.error is None
    assert cluster.gateway.admission.refusals["deadline"] == 1


@virtual
async def test_what_a_gateway_lets_in_by_mistake_is_given_back_before_anything_of_it_is_computed() -> None:
    """The gateway's reports are wrong, so it lets everybody in; workers bound their queues by time themselves."""
    cluster = await overloaded_cluster().start(1, 1)
    room = Load(free_pages=9, total_pages=9, tokens_per_second=300.0, free_places=8)
    cluster.network.rewrite = lambda source, message: room if isinstance(message, Load) else message
    outcome = await run_load(cluster, 3 * CAPACITY, SECONDS)
    let_in = [each for each in outcome.clients if each.client is not None]
    assert len(let_in) > 0.9 * len(outcome.clients)
    late = [each for each in let_in if each.client and isinstance(each.client.error, Overloaded)]
    assert len(late) > 0.4 * len(let_in) and not any(each.times for each in late)
    assert all(each.times[0] - each.came_seconds < 2 * QUEUE_SECONDS + 1 for each in let_in if each.served)
    assert outcome.wasted <= 0.02
    assert await cluster.finish() == []


@virtual
async def test_a_local_prompt_that_waits_too_long_at_decode_is_given_back() -> None:
    cluster = await Cluster(1, max_batch=1, local=Local.ALWAYS, queue_seconds=0.1, step_seconds=0.02).start(0, 1)
    hog = cluster.ask((1, 2, 3), Sampling(max_tokens=40))
    late = cluster.ask((4, 5, 6))
    late.may_fail = True
    assert await cluster.until(lambda: late.ended, 0.3)
    assert isinstance(late.error, Overloaded) and not hog.ended and not late.seen
    assert await cluster.finish() == []


@virtual
async def test_choices_of_one_request_are_let_in_together_however_many() -> None:
    """An idle mesh serves every request. Its later choices take turns, so no other request is refused for them."""
    cluster = await overloaded_cluster(max_batch=2).start(1, 1)
    warm = cluster.ask((1, 2, 3))
    assert await cluster.until(lambda: warm.ended)
    first = cluster.ask((1, 2, 3, 4), Sampling(max_tokens=40))
    for number in range(1, 40):
        again = replace(first.spec, sampling=replace(first.spec.sampling, choice=number))
        cluster.gateway.submit(again)
    assert len(cluster.gateway.sequencer.requests) == 40
    await asyncio.sleep(0.3)
    other = cluster.ask((5, 6, 7))
    assert await cluster.until(lambda: other.ended) and other.error is None
    assert len(cluster.gateway.sequencer.requests) > 20, "most choices of the other one have not ended by then"
    for request in list(cluster.gateway.sequencer.requests.values()):
        cluster.gateway.sequencer.end(request, Overloaded("over", wait_seconds=1.0, retry_after_seconds=1.0))
    first.may_fail = True
    assert await cluster.finish() == []


@virtual
async def test_two_gateways_see_one_queue() -> None:
    """The second gateway knows of the first one's requests what the workers report."""
    cluster = await overloaded_cluster().start(1, 1)
    other = Gateway(cluster.network.host("gateway2"), random=Random(9), model="sim", local=Local.NEVER)
    for process in cluster.processes.values():
        other.attaching.on_register(Register(process.name, process.tier, process.incarnation))
    assert await cluster.until(lambda: len(other.workers) == 2)
    random = Random(1)
    for _ in range(200):
        await asyncio.sleep(random.expovariate(3 * CAPACITY))
        come(cluster, random)
    mine, theirs = cluster.gateway.admission.wait_seconds("sim"), other.admission.wait_seconds("sim")
    assert mine > 1.0 and abs(mine - theirs) < 0.5
    await other.aclose()
    assert await cluster.finish() == []
