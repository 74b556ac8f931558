"""A rolling upgrade: each worker in turn gets SIGTERM and is replaced under load. No request fails, none loses, repeats
or changes a token, none crosses its class, and each worker is gone within its grace period."""

import asyncio
from random import Random

import pytest

from mesh.messages.jobs import Sampling, Tier
from mesh.sessions.serving import drain
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

GRACE_SECONDS = 2.0
STEP_SECONDS = 0.05  # an answer of 200 tokens takes 10 s, five times the grace period
LONG = Sampling(max_tokens=200)


async def leave(cluster: Cluster, name: str, grace_seconds: float = GRACE_SECONDS) -> float:
    """Do to a worker what SIGTERM does; returns how long it took to leave."""
    process, loop, asked = cluster.processes[name], asyncio.get_running_loop(), asyncio.Event()
    began = loop.time()
    asked.set()
    await drain(process.worker, asked, grace_seconds)
    took = loop.time() - began
    await cluster.kill(name)
    return took


async def upgrade(cluster: Cluster, *, grace_seconds: float = GRACE_SECONDS) -> list[float]:
    """Replace every worker in turn; returns how long each took to leave."""
    times, count = [], len(cluster.processes)
    for name, process in list(cluster.processes.items()):
        times.append(await leave(cluster, name, grace_seconds))
        await asyncio.sleep(0.5)  # a new process starts
        await cluster.add(process.tier, name)
        assert await cluster.until(lambda: len(cluster.gateway.workers) == count)
        await asyncio.sleep(0.5)
    return times


def traffic(cluster: Cluster, random: Random, until: asyncio.Event) -> "asyncio.Task[None]":
    async def come() -> None:
        while not until.is_set():
            prompt = tuple(random.randrange(40) for _ in range(random.randint(1, 30)))
            cluster.ask(
                prompt, Sampling(temperature=1.0, seed=random.getrandbits(30), max_tokens=random.randint(2, 200))
            )
            await asyncio.sleep(random.expovariate(2.0))

    return asyncio.ensure_future(come())


@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_a_rolling_upgrade_under_load_fails_no_request_and_ends_in_time(seed: int) -> None:
    cluster = Cluster(seed, pages=256, max_batch=32, step_seconds=STEP_SECONDS, one_sided=seed % 2 == 0)
    await cluster.start(2, 2)
    over = asyncio.Event()
    load = traffic(cluster, Random(seed), over)
    await asyncio.sleep(2.0)
    times = await upgrade(cluster)
    over.set()
    await load
    assert await cluster.finish(300.0) == []
    assert [client.error for client in cluster.clients if client.error is not None] == []
    assert max(times) <= GRACE_SECONDS + 0.1 and len(times) == 4


@virtual
async def test_two_classes_are_upgraded_side_by_side_and_each_request_stays_within_one() -> None:
    numerics = dict.fromkeys(("prefill1", "decode2", "decode3"), "class-b")
    cluster = await Cluster(7, pages=256, max_batch=32, step_seconds=STEP_SECONDS, numerics=numerics).start(2, 4)
    over = asyncio.Event()
    load = traffic(cluster, Random(7), over)
    await asyncio.sleep(2.0)
    await upgrade(cluster)
    over.set()
    await load
    assert await cluster.finish(300.0) == []
    assert [client.error for client in cluster.clients if client.error is not None] == []
    served = {client.handle.numerics.split()[0] for client in cluster.clients}
    assert served == {"class-a", "class-b"}, "finish() has found no answer that changed its class"


async def one_long_answer(grace_seconds: float | None, decodes: int = 2) -> tuple[Cluster, SimClient, str, float]:
    """A decode worker drains under a long answer; how long it was busy with it from then on."""
    cluster = await Cluster(9, step_seconds=STEP_SECONDS).start(1, decodes)
    client = cluster.ask(tuple(range(10)), LONG)
    await cluster.until(lambda: len(client.seen) > 20)
    busy = next(p for p in cluster.processes.values() if p.tier is Tier.DECODE and p.worker.busy)
    began = asyncio.get_running_loop().time()
    busy.worker.attachments.drain(grace_seconds)
    await cluster.until(lambda: not busy.worker.busy)
    return cluster, client, busy.name, asyncio.get_running_loop().time() - began


@virtual
async def test_an_answer_that_needs_longer_than_the_grace_period_is_handed_over_at_once() -> None:
    cluster, client, _, seconds = await one_long_answer(2.0)
    assert seconds < 0.2 and not client.ended
    assert await cluster.finish() == [] and client.error is None and client.handle.timings.attempts == 2


@virtual
async def test_an_answer_that_ends_within_the_grace_period_stays_where_it_is() -> None:
    cluster, client, _, seconds = await one_long_answer(60.0)
    assert seconds > 5.0 and client.handle.timings.attempts == 1
    assert await cluster.finish() == [] and client.error is None


@virtual
async def test_without_a_grace_period_nothing_is_handed_over() -> None:
    """Negative control: so a drain was before. The answer keeps the worker for its whole length."""
    cluster, client, _, seconds = await one_long_answer(None)
    assert seconds > 5.0 and client.handle.timings.attempts == 1
    assert await cluster.finish() == []


@virtual
async def test_an_answer_without_another_place_stays_to_the_end_of_the_session_and_goes_on_at_the_next_worker() -> None:
    cluster = await Cluster(9, step_seconds=STEP_SECONDS).start(1, 1)
    client = cluster.ask(tuple(range(10)), LONG)
    await cluster.until(lambda: len(client.seen) > 20)
    seen = len(client.seen)
    took = await leave(cluster, "decode0")
    assert took >= GRACE_SECONDS and len(client.seen) > seen + 20, "it went on while the worker was there"
    await asyncio.sleep(1.0)
    await cluster.add(Tier.DECODE, "decode0")
    assert await cluster.finish() == [] and client.error is None and client.handle.timings.attempts == 2
