"""A worker's Attach streams carry Hello, requests, reports and its drain, on the network inside one process."""

import asyncio
from dataclasses import dataclass, replace
from random import Random

import pytest

from mesh.messages.hello_checks import hello_problem, load_problem
from mesh.messages.jobs import Job, Reason, Sampling, Ticket, Tier
from mesh.messages.message import Drain, Message
from mesh.messages.orders import Cancel, Open, Refused, Snapshot
from mesh.messages.reports import Hello, Load, Lost, PrefixChange
from mesh.network.interface import Channel, Stream
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.attach import Attachments
from mesh.sessions.session import Session
from tests.sim.loop import virtual
from tests.unit.mesh.attachments import attachments

CURRENT = Hello(Tier.DECODE, 1, "worker", "a", "print", "m", "0", 4, 64, Load(), PrefixChange(0, (b"page",), (), True))
# What a worker knows when it starts: the rest of Hello is that of the moment in which a gateway dials.
AT_FIRST = CURRENT.at("elsewhere", Load(waiting=9), PrefixChange(7, (b"other",), (), True))


@dataclass
class AttachedGateway:
    """A worker's Attachments and a gateway that has dialed it."""

    attachments: Attachments
    network: MemoryNetwork
    stream: Stream
    requests: list[Message]
    ended: list[Session]


async def attached() -> AttachedGateway:
    network, requests, ended = MemoryNetwork(Random(1)), list[Message](), list[Session]()
    worker = attachments(
        network.host("worker"),
        hello=AT_FIRST,
        load=lambda: CURRENT.load,
        cached=lambda: CURRENT.prefix.added,
        on_message=lambda session, message: requests.append(message),
        on_end=ended.append,
    )
    await worker.listen("worker")
    stream = await network.host("gateway").dial("worker", Channel.ATTACH)
    assert await stream.receive() == CURRENT, "Hello is the first message, with address, load and cache of this moment"
    return AttachedGateway(worker, network, stream, requests, ended)


async def received(stream: Stream, seconds: float = 0.1) -> list[Message]:
    found = list[Message]()
    try:
        while True:
            found.append(await asyncio.wait_for(stream.receive(), seconds))
    except TimeoutError:
        return found


@virtual
async def test_only_what_has_changed_is_reported() -> None:
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


@virtual
async def test_a_gateway_that_misses_a_change_gets_the_whole_cache() -> None:
    gateway = await attached()
    gateway.attachments.report(CURRENT.load, (b"page",), ())
    await received(gateway.stream)
    gateway.stream.send(Snapshot())
    assert await received(gateway.stream) == [PrefixChange(1, (b"page",), (), snapshot=True)]
    assert gateway.requests == []


@virtual
async def test_requests_are_handed_over_and_the_end_of_the_stream_is_reported() -> None:
    gateway = await attached()
    gateway.stream.send(Cancel(1, 1))
    await asyncio.sleep(0.1)
    (session,) = gateway.attachments.sessions
    assert gateway.requests == [Cancel(1, 1)] and gateway.ended == []
    gateway.stream.close()
    await asyncio.sleep(0.1)
    assert gateway.ended == [session] and gateway.attachments.sessions == []


@virtual
async def test_a_worker_that_drains_says_so_once() -> None:
    gateway = await attached()
    gateway.attachments.drain()
    assert await received(gateway.stream) == [Drain()]


@virtual
async def test_an_earlier_hand_over_counts_and_a_later_one_does_not() -> None:
    gateway = await attached()
    gateway.attachments.drain(5.0)
    gateway.attachments.drain(2.0)
    gateway.attachments.drain(60.0)
    gateway.attachments.drain()
    assert await received(gateway.stream) == [Drain(5000), Drain(2000)]
    await asyncio.sleep(0.9)
    late = await gateway.network.host("another").dial("worker", Channel.ATTACH)
    hello, drain = await received(late)
    assert hello == CURRENT, "negative control: it is the same worker"
    assert isinstance(drain, Drain) and drain.grace_ms == pytest.approx(1000, abs=20), "what is left of two seconds"
    await asyncio.sleep(3.0)
    later = await gateway.network.host("a third").dial("worker", Channel.ATTACH)
    assert (await received(later))[1:] == [Drain(0)]


@virtual
async def test_a_drain_without_an_hour_may_get_one_later() -> None:
    gateway = await attached()
    gateway.attachments.drain()
    gateway.attachments.drain(3.0)
    assert await received(gateway.stream) == [Drain(), Drain(3000)]


@virtual
async def test_the_drain_that_a_gateway_orders_reaches_all_gateways() -> None:
    gateway = await attached()
    other = await gateway.network.host("another").dial("worker", Channel.ATTACH)
    await received(other)
    gateway.stream.send(Drain(4000))
    assert await received(other) == [Drain(4000)] == await received(gateway.stream)
    assert gateway.requests == [], "it is no request"


@virtual
async def test_an_unsound_job_is_answered_and_reaches_no_worker() -> None:
    gateway = await attached()
    good = Job(Ticket(1, 1, bytes(16)), (1, 2), (), Sampling(max_tokens=4))
    empty, long = replace(good, prompt=()), replace(good, prompt=(1,) * 5000)
    for job in (empty, long, good):
        gateway.stream.send(Open(job, None))
    first, second = await received(gateway.stream)
    assert first == Lost(good.ticket, Reason.FAILED, "prompt is empty")
    assert isinstance(second, Lost) and second.reason is Reason.TOO_LARGE
    assert gateway.requests == [Open(good, None)] and gateway.ended == [], "the stream goes on"


@virtual
async def test_a_worker_that_gets_no_requests_says_why_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    gateway = await attached()
    gateway.stream.send(Refused("it fits no decode worker"))
    await asyncio.sleep(0.1)
    assert gateway.requests == [] and gateway.ended == []
    assert [record.levelname for record in caplog.records if "it fits no decode worker" in record.message] == ["ERROR"]


@virtual
async def test_a_worker_with_absurd_estimates_sends_only_what_gateways_accept() -> None:
    network = MemoryNetwork(Random(1))
    wild = Load(total_pages=8, free_pages=9, place_seconds=1e5, page_seconds=float("nan"))
    worker = attachments(network.host("worker"), hello=CURRENT, load=lambda: wild)
    await worker.listen("worker")
    stream = await network.host("gateway").dial("worker", Channel.ATTACH)
    hello = await stream.receive()
    assert isinstance(hello, Hello) and hello_problem(hello) == ""
    worker.report(wild, (), ())
    worker.report(wild, (), ())
    (load,) = await received(stream)
    assert isinstance(load, Load) and load_problem(load) == "" and load_problem(wild) != ""
