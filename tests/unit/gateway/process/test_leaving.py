"""A gateway that leaves refuses new requests, lets running ones end, and tells the rest how to continue."""

import asyncio

import pytest

from gateway.core.interface import ChoiceRequest
from gateway.process.leaving import drain
from mesh.errors import Unavailable
from mesh.messages.jobs import Sampling, Tier
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

LONG = Sampling(max_tokens=200)


@virtual
async def test_running_answers_end_by_themselves_and_new_ones_are_refused() -> None:
    cluster = await Cluster(1).start(1, 1)
    running = cluster.ask(tuple(range(10)))
    leaving = asyncio.ensure_future(drain(cluster.gateway, 30.0))
    await asyncio.sleep(0)
    assert not cluster.gateway.healthy()
    with pytest.raises(Unavailable, match="shuts down") as refused:
        cluster.gateway.submit(ChoiceRequest("r", "sim", (1, 2), (), LONG))
    assert refused.value.retry_after_seconds is not None
    began = asyncio.get_running_loop().time()
    await leaving
    assert asyncio.get_running_loop().time() - began < 29.0, "it leaves as soon as nothing runs"
    assert await cluster.finish() == [] and running.error is None


@virtual
async def test_what_runs_longer_ends_with_an_error_that_says_how_to_continue() -> None:
    cluster = await Cluster(2).start(1, 1)

    running = cluster.ask(tuple(range(10)), LONG)
    running.may_fail = True
    await cluster.until(lambda: len(running.seen) > 5)
    await drain(cluster.gateway, 0.0)
    await cluster.until(lambda: running.ended)
    assert isinstance(running.error, Unavailable)
    assert running.error.details["emitted_tokens"] == str(len(running.seen))
    assert "`emitted`" in running.error.message
    assert await cluster.finish() == []


class OpenConnection:
    """The ports of one of two processes: the other one takes new connections, and one connection stays open here."""

    quiet = False

    async def hand_over(self, seconds: float) -> bool:
        return True

    async def close(self) -> None:
        pass


@virtual
async def test_what_comes_on_an_open_connection_is_served_until_the_end_and_then_refused() -> None:
    cluster = await Cluster(1).start(1, 1)
    leaving = asyncio.ensure_future(drain(cluster.gateway, 2.0, OpenConnection()))
    await asyncio.sleep(1.0)
    running = cluster.ask(tuple(range(10)), Sampling(max_tokens=3))
    await leaving
    assert running.error is None
    with pytest.raises(Unavailable, match="shuts down"):
        cluster.gateway.submit(ChoiceRequest("r", "sim", (1, 2), (), LONG))
    assert await cluster.finish() == []


@virtual
async def test_a_worker_that_drains_gets_nothing_new_in_a_new_session_either() -> None:
    cluster = await Cluster(1).start(1, 1)
    (worker,) = (each for each in cluster.gateway.workers if each.tier is Tier.DECODE)
    worker.drains()
    worker.session.close()
    assert await cluster.until(lambda: all(each is not worker for each in cluster.gateway.workers))
    assert await cluster.until(lambda: any(each.tier is Tier.DECODE for each in cluster.gateway.workers))
    (again,) = (each for each in cluster.gateway.workers if each.tier is Tier.DECODE)
    assert again.incarnation == worker.incarnation and not again.takes_requests
