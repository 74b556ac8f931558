"""Two models in one mesh: each request meets only workers of its model, whatever dies; strangers get no requests."""

import asyncio

import pytest

from gateway.core.interface import ChoiceRequest
from gateway.routing.registry import Workers
from mesh.errors import Unavailable
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.orders import Examination
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual
from tests.sim.model import reference, reference_logprobs
from tests.sim.workers import SHAPE

PROMPT = tuple(range(10))
SAMPLING = Sampling(max_tokens=12)
OTHER = {"prefill1": "other", "decode1": "other"}  # one worker of each tier for each model
ACCENTS = {"sim": 0, "other": 1}  # the models say different things


def two_models(**more: object) -> Cluster:
    numerics = dict.fromkeys(OTHER, "class-b")  # the class of a real worker contains the hash of its model
    return Cluster(1, models=OTHER, numerics=numerics, served=("sim", "other"), **more)  # type: ignore[arg-type]


def expected(client: SimClient) -> list[int]:
    return reference(client.spec.prompt, client.spec.sampling, SHAPE.layers, ACCENTS[client.spec.model])


async def served(cluster: Cluster, count: int = 12) -> list[SimClient]:
    """Requests to both models in turn, with prompts that both have cached."""
    for number in range(count):
        cluster.ask((*PROMPT, number // 4), SAMPLING, model=("sim", "other")[number % 2])
        await asyncio.sleep(0.004)
    assert await cluster.finish() == []
    return cluster.clients


@virtual
async def test_each_request_is_answered_by_its_own_model() -> None:
    cluster = await two_models().start(2, 2)
    clients = await served(cluster)
    assert [client.seen for client in clients] == [expected(client) for client in clients]


@virtual
async def test_negative_control_a_router_that_ignores_the_model_gives_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Workers, "of", lambda self, model: self)
    table = Workers.table
    monkeypatch.setattr(Workers, "table", lambda self, model: table(self, "any"))
    cluster = await two_models().start(2, 2)
    clients = await served(cluster)
    assert [client.seen for client in clients] != [expected(client) for client in clients]


@virtual
async def test_the_death_of_one_model_s_worker_moves_its_requests_to_none_of_the_other() -> None:
    cluster = await two_models().start(2, 2)
    long = Sampling(max_tokens=40)
    mine, theirs = cluster.ask(PROMPT, long), cluster.ask(PROMPT, long, model="other")
    await cluster.until(lambda: len(theirs.seen) > 5)
    await cluster.kill("decode1")
    assert await cluster.until(lambda: mine.ended) and mine.seen == expected(mine)
    assert not theirs.ended, "it waits for a decode worker of its model"
    await cluster.restart("decode1")
    assert await cluster.finish() == [] and theirs.seen == expected(theirs)


@virtual
async def test_a_model_without_workers_is_refused_by_name_while_the_other_is_served() -> None:
    cluster = await two_models().start(2, 2)
    for name in OTHER:
        await cluster.kill(name)
    await cluster.until(lambda: len(cluster.gateway.workers) == 2)
    gateway = cluster.gateway
    assert gateway.healthy() and gateway.facts("sim").healthy and not gateway.facts("other").healthy
    waits = cluster.ask(PROMPT, SAMPLING, model="other")
    waits.may_fail = True
    await asyncio.sleep(11.0)
    with pytest.raises(Unavailable, match="no worker of model 'other' has been attached for 11 s"):
        cluster.ask(PROMPT, SAMPLING, model="other")
    mine = cluster.ask(PROMPT, SAMPLING)
    assert await cluster.until(lambda: mine.ended) and mine.seen == expected(mine)
    await cluster.restart("decode1")
    assert await cluster.finish() == [] and waits.seen == expected(waits)


@virtual
async def test_a_worker_of_a_model_that_is_not_served_is_refused_by_name_and_gets_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = await Cluster(1, models={"decode9": "stranger"}).start(1, 1)
    await cluster.add(Tier.DECODE, "decode9")
    await asyncio.sleep(60.0)
    assert cluster.gateway.refused_workers() == ("decode9 at decode9: it has model stranger, served are sim",)
    for _ in range(8):
        cluster.ask(PROMPT, SAMPLING)
    assert await cluster.finish() == []
    assert cluster.processes["decode9"].worker.plans == []
    await cluster.kill("decode9")
    await cluster.until(lambda: not cluster.gateway.refused_workers())
    assert cluster.gateway.refused_workers() == () and len(cluster.gateway.workers) == 2
    refusals = [message for message in caplog.messages if "is refused" in message]
    assert refusals == ["decode decode9 is refused: it has model stranger, served are sim"], "once, not each heartbeat"


@virtual
async def test_examinations_go_to_workers_of_their_model_only() -> None:
    cluster = await two_models().start(1, 1)
    spec = ChoiceRequest("e", "other", PROMPT, (), Sampling(max_tokens=0), examination=Examination())
    stream = cluster.gateway.examine(spec)
    await asyncio.sleep(2.0)
    assert cluster.prefill(0).plans == [], "the only prefill worker is of the other model"
    await cluster.add(Tier.PREFILL, "prefill1")
    found = [entry.logprob for entry in (await stream.scores()).entries()]
    assert found == reference_logprobs(PROMPT, SHAPE.layers, accent=1)
    assert await cluster.finish() == []
