"""A request whose time is over when it arrives costs a worker no step."""

import asyncio

import pytest

from gateway.routing.router import Local
from mesh.errors import DeadlineExceeded
from mesh.messages.jobs import Job, Sampling, Ticket
from mesh.messages.message import Message
from mesh.messages.orders import Examination, Examine, Open, Prefill
from mesh.network.interface import Channel
from mesh.rules import RULES
from mesh.sessions.session import Session
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual


def job(number: int, deadline_seconds: float | None) -> Job:
    return Job(Ticket(number, 1, bytes(16)), tuple(range(8)), (), Sampling(max_tokens=4), deadline_seconds)


async def steps_of(messages: list[Message], name: str) -> int:
    """The steps that a worker computes for these messages of a gateway."""
    cluster = await Cluster(1, local=Local.ALWAYS).start(1, 1)
    stream = await cluster.network.host("direct").dial(name, Channel.ATTACH)
    session = Session(stream, rules=RULES, name=name)
    task = asyncio.ensure_future(session.run(lambda message: None))
    for message in messages:
        session.send(message)
    await asyncio.sleep(1.0)
    plans = cluster.processes[name].worker.plans
    task.cancel()
    assert cluster.violations() == []
    return len(plans or [])


@pytest.mark.parametrize(("seconds", "computed"), [(0.0, False), (-1.0, False), (5.0, True), (None, True)])
@virtual
async def test_a_worker_computes_only_what_is_not_late(seconds: float | None, computed: bool) -> None:
    assert (await steps_of([Open(job(1, seconds), None)], "decode0") > 0) is computed
    for name in ("decode0", "prefill0"):
        assert (await steps_of([Examine(job(2, seconds), Examination())], name) > 0) is computed


@virtual
async def test_a_late_prompt_leaves_nothing_at_prefill() -> None:
    cluster = await Cluster(1).start(1, 1)
    stream = await cluster.network.host("direct").dial("prefill0", Channel.ATTACH)
    session = Session(stream, rules=RULES, name="prefill0")
    task = asyncio.ensure_future(session.run(lambda message: None))
    session.send(Prefill(job(1, 0.0), "decode0", cluster.processes["decode0"].incarnation))
    await asyncio.sleep(0.01)
    assert not cluster.prefill().prompts
    session.send(Prefill(job(2, None), "decode0", cluster.processes["decode0"].incarnation))
    await asyncio.sleep(0.01)
    assert len(cluster.prefill().prompts) == 1, "negative control"
    task.cancel()
    await asyncio.sleep(1.0)
    assert await cluster.finish() == []


@virtual
async def test_a_request_that_is_late_in_the_queue_ends_with_its_own_error_before_it_is_computed() -> None:
    cluster = await Cluster(2, local=Local.ALWAYS, max_batch=1).start(0, 1)
    long = cluster.ask(tuple(range(10)), Sampling(max_tokens=200))
    assert await cluster.until(lambda: len(long.seen) > 2)
    late = cluster.ask(tuple(range(20)), Sampling(max_tokens=4), 0.1)
    late.may_fail = True
    assert await cluster.until(lambda: late.ended, 0.2)
    assert isinstance(late.error, DeadlineExceeded)
    assert await cluster.finish() == []
    assert all(len(plan.pieces) == 1 for plan in cluster.decode().plans or [])
