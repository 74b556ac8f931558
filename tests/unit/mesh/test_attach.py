"""A worker registers until its gateways have dialed; then its Attach streams carry Hello, requests and reports."""

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from engine.pages import PagePool
from mesh.attach import LOOK_SECONDS, SOON_SECONDS, Attachments
from mesh.job_check import JobLimits
from mesh.memory_network import MemoryNetwork
from mesh.messages import (
    Cancel,
    Drain,
    Hello,
    Job,
    Load,
    Lost,
    Message,
    Open,
    PrefixChange,
    Reason,
    Refused,
    Register,
    Sampling,
    Snapshot,
    Ticket,
    Tier,
)
from mesh.network import Channel, Stream, StreamClosed
from mesh.rules import RULES
from mesh.session import Session
from tests.sim.loop import run_virtual


class DeafFor:
    """A network on which the gateway does not answer the first `deaf` registrations."""

    def __init__(self, deaf: int) -> None:
        self.at: list[float] = []
        self._deaf = deaf

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return (gateway,)

    async def register(self, gateway: str, message: Register) -> None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) <= self._deaf:
            raise StreamClosed("the gateway does not answer")


class Listens:
    address = "here:1"


def attachments(network: Any) -> Attachments:
    found = Attachments(
        network,
        gateways=("gateway:1",),
        tier=Tier.DECODE,
        incarnation=1,
        rules=RULES,
        hello=lambda address: pytest.fail("no gateway has dialed"),
        on_message=lambda session, message: None,
        on_end=lambda session: None,
        limits=JobLimits(0, 4096),
        pages=PagePool(8),
    )
    found.listening = Listens()  # type: ignore[assignment]
    return found


async def gaps(deaf: int, seconds: float) -> list[float]:
    """Seconds between registrations, on a clock that jumps."""
    network, loop = DeafFor(deaf), asyncio.get_running_loop()
    now = 0.0
    loop.time = lambda: now  # type: ignore[method-assign]
    task = asyncio.ensure_future(attachments(network).register())
    while now < seconds:
        await asyncio.sleep(0)
        now += 0.001
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [after - before for before, after in zip(network.at, network.at[1:], strict=False)]


async def test_a_worker_registers_again_soon_while_its_gateway_starts() -> None:
    assert sum((await gaps(deaf=3, seconds=2.0))[:3]) == pytest.approx(7 * SOON_SECONDS, abs=0.05)


async def test_a_worker_registers_once_a_heartbeat_where_no_gateway_answers() -> None:
    assert (await gaps(deaf=100, seconds=8.0))[-1] == pytest.approx(RULES.heartbeat_seconds, abs=0.05)
    assert (await gaps(deaf=0, seconds=4.0))[0] == pytest.approx(RULES.heartbeat_seconds, abs=0.05)


async def test_a_worker_whose_gateway_does_not_answer_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    await gaps(deaf=100, seconds=8.0)
    assert caplog.messages == ["cannot reach gateway gateway:1: the gateway does not answer"]


class Growing:
    """A network on which one name stands for the gateways that a test puts behind it."""

    def __init__(self, *gateways: str) -> None:
        self.gateways = gateways
        self.asked: list[str] = []

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return self.gateways

    async def register(self, gateway: str, message: Register) -> None:
        self.asked.append(gateway)


def test_a_worker_registers_with_every_gateway_behind_a_name_and_with_those_that_come_later() -> None:
    async def main() -> tuple[list[str], list[str]]:
        network = Growing("a:1", "b:1")
        worker = attachments(network)
        task = asyncio.ensure_future(worker.register())
        await asyncio.sleep(0.5)
        first = list(network.asked)
        worker.sessions += [None, None]  # type: ignore[list-item]
        await asyncio.sleep(1.0)
        network.asked.clear()
        network.gateways = ("a:1", "b:1", "c:1")
        await asyncio.sleep(LOOK_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return first, network.asked

    first, later = run_virtual(main())
    assert first == ["a:1", "b:1"]
    assert later[:3] == ["a:1", "b:1", "c:1"]


# ---- Attach streams, on the network inside one process

CURRENT = Hello(Tier.DECODE, 1, "worker", "a", "print", "m", "0", 4, 64, Load(), PrefixChange(3, (b"page",), (), True))


@dataclass
class AttachedGateway:
    """A worker's Attachments and a gateway that has dialed it."""

    attachments: Attachments
    stream: Stream
    requests: list[Message]
    ended: list[Session]


async def attached() -> AttachedGateway:
    network, requests, ended = MemoryNetwork(Random(1)), list[Message](), list[Session]()
    worker = Attachments(
        network.host("worker"),
        gateways=("gateway",),
        tier=Tier.DECODE,
        incarnation=1,
        rules=RULES,
        hello=lambda address: CURRENT,
        on_message=lambda session, message: requests.append(message),
        on_end=ended.append,
        limits=JobLimits(0, 4096),
        pages=PagePool(8),
    )
    await worker.listen("worker")
    stream = await network.host("gateway").dial("worker", Channel.ATTACH)
    assert await stream.receive() == CURRENT, "Hello is the first message"
    return AttachedGateway(worker, stream, requests, ended)


async def received(stream: Stream, seconds: float = 0.1) -> list[Message]:
    found = list[Message]()
    try:
        while True:
            found.append(await asyncio.wait_for(stream.receive(), seconds))
    except TimeoutError:
        return found


def test_only_what_has_changed_is_reported() -> None:
    async def main() -> None:
        gateway = await attached()
        busy = Load(waiting=1)
        for load, added, removed in ((busy, (), ()), (busy, (b"x",), ()), (busy, (), ()), (Load(), (), (b"x",))):
            gateway.attachments.report(load, added, removed)
        assert await received(gateway.stream) == [
            busy,
            PrefixChange(1, (b"x",), ()),
            PrefixChange(2, (), (b"x",)),
            Load(),
        ]
        assert gateway.attachments.sequence == 2

    run_virtual(main())


def test_a_gateway_that_misses_a_change_gets_the_whole_cache() -> None:
    async def main() -> None:
        gateway = await attached()
        gateway.stream.send(Snapshot())
        assert await received(gateway.stream) == [CURRENT.prefix] and gateway.requests == []

    run_virtual(main())


def test_requests_are_handed_over_and_the_end_of_the_stream_is_reported() -> None:
    async def main() -> None:
        gateway = await attached()
        gateway.stream.send(Cancel(1, 1))
        await asyncio.sleep(0.1)
        (session,) = gateway.attachments.sessions
        assert gateway.requests == [Cancel(1, 1)] and gateway.ended == []
        gateway.stream.close()
        await asyncio.sleep(0.1)
        assert gateway.ended == [session] and gateway.attachments.sessions == []

    run_virtual(main())


def test_a_worker_that_drains_says_so_once() -> None:
    async def main() -> None:
        gateway = await attached()
        gateway.attachments.drain()
        assert await received(gateway.stream) == [Drain()]

    run_virtual(main())


def test_an_unsound_job_is_answered_and_reaches_no_worker() -> None:
    async def main() -> None:
        gateway = await attached()
        good = Job(Ticket(1, 1, bytes(16)), (1, 2), (), Sampling(max_tokens=4))
        empty, long = replace(good, prompt=()), replace(good, prompt=(1,) * 5000)
        for job in (empty, long, good):
            gateway.stream.send(Open(job, None))
        first, second = await received(gateway.stream)
        assert first == Lost(good.ticket, Reason.FAILED, "prompt is empty")
        assert isinstance(second, Lost) and second.reason is Reason.TOO_LARGE
        assert gateway.requests == [Open(good, None)] and gateway.ended == [], "the stream goes on"

    run_virtual(main())


def test_a_worker_that_gets_no_requests_says_why_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        gateway = await attached()
        gateway.stream.send(Refused("it fits no decode worker"))
        await asyncio.sleep(0.1)
        assert gateway.requests == [] and gateway.ended == []

    run_virtual(main())
    assert [record.levelname for record in caplog.records if "it fits no decode worker" in record.message] == ["ERROR"]
