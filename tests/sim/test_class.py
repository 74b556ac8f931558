"""Numerics classes: what class A began only class A continues, unless the client allows a change and sees it."""

import asyncio
from dataclasses import replace
from random import Random

from mesh.errors import ClassUnavailable
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.reports import Tokens
from mesh.rules import RULES, Rules
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual
from tests.sim.model import reference
from tests.sim.workers import SHAPE

PROMPT = tuple(range(10))
SAMPLING = Sampling(max_tokens=20)


async def two_classes(rules: Rules = RULES) -> Cluster:
    """Prefill A, decode A, decode B."""
    cluster = await Cluster(1, rules=rules, numerics={"decode1": "class-b"}).start(1, 2)
    return cluster


async def half_way(cluster: Cluster, *, allow_class_change: bool) -> SimClient:
    client = cluster.ask(PROMPT, SAMPLING, allow_class_change=allow_class_change)
    client.may_fail = True
    assert await cluster.until(lambda: len(client.seen) == 7)
    await cluster.kill("decode0")
    return client


@virtual
async def test_another_class_gets_no_request_while_its_own_is_there() -> None:
    cluster = await two_classes()
    for number in range(20):
        cluster.ask((*PROMPT, number))
    assert await cluster.finish() == []
    assert cluster.decode(1).plans == [] and cluster.decode(1).landings.bytes_landed == 0
    texts = [reference(client.spec.prompt, client.spec.sampling, SHAPE.layers) for client in cluster.clients]
    assert [client.seen for client in cluster.clients] == texts
    assert "fingerprint print-class-a" in cluster.clients[0].handle.numerics


@virtual
async def test_when_its_class_is_gone_a_request_ends_and_names_both_fingerprints() -> None:
    cluster = await two_classes()
    client = await half_way(cluster, allow_class_change=False)
    assert await cluster.until(lambda: client.ended, 16)
    assert isinstance(client.error, ClassUnavailable)
    assert "print-class-a" in str(client.error) and "print-class-b" in str(client.error)
    assert "allow_class_change" in str(client.error)
    assert cluster.decode(1).plans == []
    assert await cluster.finish() == []


@virtual
async def test_with_allow_class_change_it_goes_on_and_says_so() -> None:
    cluster = await two_classes()
    client = await half_way(cluster, allow_class_change=True)
    began = client.handle.numerics
    assert "print-class-a" in began
    assert await cluster.until(lambda: client.ended, 5)
    assert client.error is None and client.positions == list(range(20))
    assert client.handle.numerics != began and "print-class-b" in client.handle.numerics
    ours, theirs = (reference(PROMPT, SAMPLING, SHAPE.layers, accent) for accent in (0, 1))
    assert client.seen[:7] == ours[:7] and client.seen not in (ours, theirs)
    assert all(piece.position >= 7 for plan in cluster.decode(1).plans or [] for piece in plan.pieces)


@virtual
async def test_a_request_that_has_shown_nothing_may_begin_in_another_class() -> None:
    cluster = await two_classes()
    cluster.network.hold(lambda source, target, message: isinstance(message, Tokens) and source != "decode1")
    client = cluster.ask(PROMPT, SAMPLING)
    await cluster.until(lambda: bool(cluster.decode().plans))
    await cluster.kill("decode0")
    await cluster.kill("prefill0")
    assert await cluster.until(lambda: client.ended, 5)
    assert client.seen == reference(PROMPT, SAMPLING, SHAPE.layers, 1)


@virtual
async def test_a_client_that_comes_back_is_held_to_the_class_it_began_in() -> None:
    cluster = await two_classes()
    client = cluster.ask(PROMPT, SAMPLING)
    assert await cluster.finish() == []
    await cluster.kill("decode0")
    await cluster.kill("prefill0")
    await cluster.until(lambda: len(cluster.gateway.workers) == 1)
    again = cluster.ask(PROMPT, SAMPLING, emitted=tuple(client.seen[:5]), numerics=client.handle.numerics)
    again.may_fail = True
    assert await cluster.until(lambda: again.ended, 16)
    assert isinstance(again.error, ClassUnavailable)


async def continued_at_a_new_gateway(rules: Rules, *, away_seconds: float) -> SimClient:
    """An answer that class A began is continued at a gateway that has just started, when class B is attached there, and
    class A comes `away_seconds` later."""
    cluster = await two_classes(rules)
    client = cluster.ask(PROMPT, SAMPLING)
    assert await cluster.finish() == []
    for name in ("prefill0", "decode0"):
        await cluster.kill(name)
    await cluster.restart_gateway(Random(5))
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 1)
    again = cluster.ask(PROMPT, SAMPLING, emitted=tuple(client.seen[:5]), numerics=client.handle.numerics)
    again.may_fail = True
    await asyncio.sleep(away_seconds)
    for name in ("prefill0", "decode0"):
        await cluster.restart(name)
    assert await cluster.finish() == []
    return again


def test_a_gateway_that_has_just_started_waits_for_the_class_of_an_answer() -> None:
    again = run_virtual(continued_at_a_new_gateway(RULES, away_seconds=3.0))
    assert again.error is None and again.seen == reference(PROMPT, SAMPLING, SHAPE.layers)[5:]


def test_without_settling_the_answer_ends_though_its_class_is_about_to_attach() -> None:
    again = run_virtual(continued_at_a_new_gateway(replace(RULES, settling_seconds=0.0), away_seconds=3.0))
    assert isinstance(again.error, ClassUnavailable)


@virtual
async def test_a_gateway_that_has_settled_refuses_a_missing_class_at_once() -> None:
    cluster = await two_classes()
    client = cluster.ask(PROMPT, SAMPLING)
    assert await cluster.finish() == []
    for name in ("prefill0", "decode0"):
        await cluster.kill(name)
    await asyncio.sleep(RULES.settling_seconds + 1.0)
    again = cluster.ask(PROMPT, SAMPLING, emitted=tuple(client.seen[:5]), numerics=client.handle.numerics)
    again.may_fail = True
    await cluster.until(lambda: again.ended, 0.1)
    assert isinstance(again.error, ClassUnavailable)


@virtual
async def test_a_request_waits_for_its_class_while_the_last_worker_of_it_is_replaced() -> None:
    cluster = await two_classes()
    await asyncio.sleep(RULES.settling_seconds + 1)  # else the gateway waits for every class
    client = cluster.ask(PROMPT, Sampling(max_tokens=100))
    assert await cluster.until(lambda: len(client.seen) == 7)
    cluster.decode(0).attachments.drain(0.01)
    await asyncio.sleep(0.02)
    await cluster.kill("decode0")
    await asyncio.sleep(3.0)
    assert not client.ended
    await cluster.add(Tier.DECODE, "decode0")
    assert await cluster.finish() == [] and client.error is None
    assert client.seen == reference(PROMPT, client.spec.sampling, SHAPE.layers) and cluster.decode(1).plans == []
