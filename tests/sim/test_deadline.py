"""Decode drops late requests by its own clock, and a request of low priority does not wait for ever."""

import asyncio

import pytest

from gateway.routing.router import Local
from mesh.errors import DeadlineExceeded
from mesh.messages.jobs import End, Job, Sampling, Ticket
from mesh.messages.message import Message
from mesh.messages.orders import Cancel, Open
from mesh.messages.reports import Tokens
from mesh.network.interface import Channel
from mesh.rules import RULES
from mesh.sessions.session import Session
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

PROMPT = tuple(range(10))  # three pages


@pytest.mark.parametrize("phase", ["landing", "local", "running"])
@virtual
async def test_decode_drops_a_request_whose_deadline_has_passed_while_cancel_is_held_back(phase: str) -> None:
    cluster = await Cluster(1, local=Local.ALWAYS if phase == "local" else Local.NEVER, max_batch=1).start(1, 1)
    decode = cluster.decode()
    cancels = cluster.network.hold(lambda _, target, message: isinstance(message, Cancel) and target == "decode0")
    if phase == "local":
        cluster.ask(tuple(range(50, 60)), Sampling(max_tokens=200))  # the batch is full
        assert await cluster.until(lambda: bool(decode.requests))
    writes = cluster.fabric.hold(lambda write: phase == "landing")
    client = cluster.ask(PROMPT, Sampling(max_tokens=60), 0.05)
    client.may_fail = True
    key = cluster.ticket(client).request
    assert await cluster.until(lambda: key in decode.requests and decode.requests[key].phase.value == phase, 0.05)
    assert await cluster.until(lambda: client.ended, 0.05)
    assert isinstance(client.error, DeadlineExceeded)
    assert await cluster.until(lambda: key not in decode.requests, 0.02)
    writes()
    assert await cluster.finish() == []
    cancels()
    await asyncio.sleep(0.1)
    assert await cluster.finish() == []


class DirectGateway:
    """A gateway of its own at a decode worker: it opens requests and notes which have ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    async def attach(self, cluster: Cluster) -> None:
        stream = await cluster.network.host("direct").dial("decode0", Channel.ATTACH)
        self._session = Session(stream, rules=RULES, name="decode0")
        self.task = asyncio.ensure_future(self._session.run(self._note))

    def open(self, key: int, *, priority: int = 0, max_tokens: int = 4) -> None:
        prompt = tuple((key * 31 + slot) % 50 for slot in range(8))
        job = Job(Ticket(key, 1, bytes(16)), prompt, (), Sampling(max_tokens=max_tokens), priority=priority)
        self._session.send(Open(job, None))

    def _note(self, message: Message) -> None:
        if isinstance(message, Tokens):
            self.ended += [item.ticket.request for item in message.items if item.token.end is not End.NONE]


@virtual
async def test_a_low_priority_request_waits_its_seconds_under_a_constant_flow_and_then_ends() -> None:
    cluster = await Cluster(1, local=Local.ALWAYS, max_batch=1, cache=False).start(0, 1)
    gateway = DirectGateway()
    await gateway.attach(cluster)
    gateway.open(1, max_tokens=60)  # until others wait, too
    await asyncio.sleep(0.005)
    low, began = 2, asyncio.get_running_loop().time()
    gateway.open(low, priority=2)
    opened = {low: 0.0}
    for key in range(3, 503):  # more than one decode worker can serve
        await asyncio.sleep(0.007)
        gateway.open(key)
        opened[key] = asyncio.get_running_loop().time() - began
    assert await cluster.until(lambda: low in gateway.ended, 10.0)
    passed = [key for key in gateway.ended[: gateway.ended.index(low)] if key != 1]
    waited = 2 * RULES.priority_seconds
    assert all(opened[key] < waited + 0.05 for key in passed), "a later request counts as younger"
    assert {key for key in opened if key != low and opened[key] < waited - 0.05} <= set(passed), (
        "an earlier one as older"
    )
    gateway.task.cancel()
    assert await cluster.finish() == []
