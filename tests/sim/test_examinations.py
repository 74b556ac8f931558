"""Examinations under virtual time: their workers die, stall and come back, and every prompt is reported whole, once."""

import asyncio
from random import Random
from typing import Any

import pytest

from gateway.core.interface import ChoiceRequest, ExaminationStream, PromptScores
from gateway.routing.router import Local
from gateway.sequencing import examining
from mesh.errors import BatonError, DeadlineExceeded, WorkersDied
from mesh.messages.jobs import Pooling, Sampling
from mesh.messages.orders import Examination
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual
from tests.sim.model import reference_logprobs
from tests.sim.workers import SHAPE

SCORES = Examination()
LONG = tuple(range(120))


def examine(cluster: Cluster, prompt: tuple[int, ...], wanted: Examination = SCORES, **more: Any) -> ExaminationStream:
    spec = ChoiceRequest("e", "sim", prompt, (), Sampling(max_tokens=0), examination=wanted, **more)
    return cluster.gateway.examine(spec)


def logprobs(scores: PromptScores) -> list[float]:
    return [entry.logprob for entry in scores.entries()]


async def killed_half_way(cluster: Cluster) -> list[float]:
    """The scores of a prompt whose first worker dies in the middle; the second is of another class."""
    await cluster.start(1, 0)
    stream = examine(cluster, LONG)
    await cluster.until(lambda: any(len(r.findings) > 2 for r in cluster.gateway.sequencer.requests.values()))
    await cluster.kill("prefill0")
    await cluster.add(cluster.processes["prefill0"].tier, "prefill1")
    return logprobs(await stream.scores())


@virtual
async def test_when_its_worker_dies_another_one_reports_the_whole_prompt() -> None:
    cluster = Cluster(1, numerics={"prefill1": "class-b"})
    assert await killed_half_way(cluster) == reference_logprobs(LONG, SHAPE.layers, accent=1)
    assert await cluster.finish() == []


@virtual
async def test_negative_control_kept_reports_of_the_dead_worker_mix_two_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examining, "begin_anew", lambda request: None)
    found = await killed_half_way(Cluster(1, numerics={"prefill1": "class-b"}))
    assert found != reference_logprobs(LONG, SHAPE.layers, accent=1)


@pytest.mark.parametrize("seed", range(6))
@virtual
async def test_random_deaths_and_stalls_change_no_score_and_keep_no_page(seed: int) -> None:
    random = Random(seed)
    cluster = await Cluster(seed, pages=48, prefill_pages=24, local=random.choice(list(Local))).start(2, 2)
    results, died = list[bool](), list[BatonError]()

    async def one() -> None:
        prompt = tuple(random.randrange(50) for _ in range(random.randint(1, 60)))
        wanted = random.choice((SCORES, Examination(pooling=Pooling.LAST)))
        stream = examine(cluster, prompt, wanted, salt=random.choice((b"", b"s")))
        if random.random() < 0.15:
            asyncio.get_running_loop().call_later(random.uniform(0, 0.1), stream.cancel)
        try:
            if wanted is SCORES:
                results.append(logprobs(await stream.scores()) == reference_logprobs(prompt, SHAPE.layers))
            else:
                results.append(len(await stream.embedding()) == 8)
        except BatonError as error:
            died.append(error)

    tasks = list[asyncio.Task[None]]()
    for turn in range(40):
        tasks.append(asyncio.ensure_future(one()))
        cluster.ask(tuple(random.randrange(50) for _ in range(random.randint(1, 30)))).may_fail = True
        await asyncio.sleep(random.expovariate(1 / 0.02))
        if turn % 8 == 7:
            name = random.choice(sorted(cluster.processes))
            if random.random() < 0.5:
                await cluster.restart(name)
            else:
                cluster.freeze(name)
                asyncio.get_running_loop().call_later(random.choice((0.05, 7.0)), cluster.thaw, name)
    await asyncio.wait_for(asyncio.gather(*tasks), 300)
    assert await cluster.finish() == []
    assert len(results) > 20 and all(results)
    assert not [error for error in died if not isinstance(error, WorkersDied) and error.reason != "CANCELLED"]


async def large_among_small(cluster: Cluster) -> bool:
    """Is an examination of almost the whole pool done before a flood of small prompts ends?"""
    await cluster.start(1, 1)
    for _ in range(6):
        cluster.ask(tuple(range(12)))
    large = asyncio.ensure_future(examine(cluster, LONG[:60]).scores())  # fifteen of sixteen pages
    for index in range(100):
        cluster.ask((index, *range(11)))
        await asyncio.sleep(0.004)
    in_time = large.done()
    assert logprobs(await large) == reference_logprobs(LONG[:60], SHAPE.layers)
    assert await cluster.finish() == []
    return in_time


@virtual
async def test_a_large_examination_is_not_starved_by_small_requests() -> None:
    """Prompts that are younger leave it the pages that it waits for, and it is done before the flood ends."""
    assert await large_among_small(Cluster(3, pages=64, prefill_pages=16, local=Local.NEVER))


@virtual
async def test_small_examinations_do_not_starve_a_large_prompt() -> None:
    cluster = await Cluster(4, pages=64, prefill_pages=16, local=Local.NEVER).start(1, 1)
    floods = [asyncio.ensure_future(examine(cluster, (i, *range(11))).scores()) for i in range(8)]
    client = cluster.ask(LONG[:56], Sampling(max_tokens=1))
    for index in range(100):
        floods.append(asyncio.ensure_future(examine(cluster, (index, *range(20, 31))).scores()))
        await asyncio.sleep(0.004)
    assert client.ended and client.error is None
    await asyncio.gather(*floods)
    assert await cluster.finish() == []


@virtual
async def test_a_deadline_ends_an_examination_everywhere() -> None:
    cluster = await Cluster(5).start(1, 1)
    stream = examine(cluster, LONG * 2, deadline_seconds=0.02)
    with pytest.raises(DeadlineExceeded):
        await stream.scores()
    assert await cluster.finish() == []
    assert cluster.prefill().counts()["examined"] == 0
