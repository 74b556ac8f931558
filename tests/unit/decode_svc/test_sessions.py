"""A session with a prefill worker: hello, the chosen transport, its messages, its end."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from decode_svc.handoff.sessions import Choose, Peer, PeerHost, Sessions
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import KvHello, Later, Ready
from mesh.messages.message import Message
from mesh.messages.page_shape import PageShape
from mesh.network.interface import Channel, Stream, StreamClosed
from mesh.network.memory_network import MemoryNetwork
from mesh.rules import RULES
from tests.sim.loop import run_virtual, virtual
from tests.unit.decode_svc.fakes import KV_HELLO, SHAPE, WRITER, FakeReceiver

READY = Ready(Ticket(1, 1, bytes(16)))


class FakeLandings:
    def __init__(self) -> None:
        self.story: list[str] = []

    def session_began(self, peer: Peer) -> None:
        self.story.append(f"{peer.incarnation} begins by {peer.transport}")

    def on_message(self, peer: Peer, message: Message) -> None:
        self.story.append(type(message).__name__)

    async def session_ended(self, peer: Peer) -> None:
        self.story.append(f"{peer.incarnation} ends")


def agree(mine: KvHello, theirs: KvHello) -> tuple[str, str]:
    return "fake", "it is there"


async def dial(choose: Choose = agree) -> tuple[Sessions, FakeLandings, Stream]:
    network, landings = MemoryNetwork(Random(1)), FakeLandings()
    sessions = Sessions(KV_HELLO, {"fake": FakeReceiver()}, choose, rules=RULES)

    async def serve(stream: Stream) -> None:
        await sessions.serve(stream, landings)

    await network.host("decode").listen("decode", {Channel.KV: serve})
    return sessions, landings, await network.host("prefill").dial("decode", Channel.KV)


@virtual
async def test_a_session_is_known_from_hello_to_its_end() -> None:
    sessions, landings, stream = await dial()
    stream.send(replace(KV_HELLO, incarnation=WRITER))
    answer = await stream.receive()
    assert isinstance(answer, KvHello)
    assert (answer.incarnation, answer.chosen, answer.handle) == (1, "fake", b"handle 77")
    sessions.send(WRITER, Later(READY.ticket))
    sessions.send(WRITER + 1, Later(READY.ticket))  # it is not connected
    assert await stream.receive() == Later(READY.ticket)
    stream.send(READY)
    await asyncio.sleep(0.1)
    assert list(sessions.peers) == [WRITER]
    stream.close()
    await asyncio.sleep(0.1)
    assert landings.story == ["77 begins by fake", "Ready", "77 ends"] and sessions.peers == {}


@virtual
async def test_without_a_transport_the_answer_says_why_and_the_session_ends() -> None:
    sessions, landings, stream = await dial(lambda mine, theirs: ("", "no way"))
    stream.send(replace(KV_HELLO, incarnation=WRITER))
    answer = await stream.receive()
    assert isinstance(answer, KvHello) and (answer.chosen, answer.why) == ("", "no way")
    try:
        await stream.receive()
    except StreamClosed:
        pass
    assert landings.story == [] and sessions.peers == {}


@virtual
async def test_a_stream_that_does_not_begin_with_hello_is_no_session() -> None:
    sessions, landings, stream = await dial()
    stream.send(READY)
    await asyncio.sleep(0.1)
    assert landings.story == [] and sessions.peers == {}


async def test_connections_that_came_to_nothing_are_counted_by_transport_and_reason() -> None:
    nccl, tcp = FakeReceiver(), FakeReceiver()
    nccl.refused.update(gone=2, late=1)
    sessions = Sessions(KV_HELLO, {"nccl": nccl, "tcp": tcp}, agree, rules=RULES)
    refused = {name: count for name, count in sessions.counts().items() if name.startswith("refused_")}
    assert refused == {
        "refused_nccl_gone": 2,
        "refused_nccl_late": 1,
        "refused_nccl_token": 0,  # the reason of a stranger is always there, so that its counter begins at zero
        "refused_tcp_token": 0,
    }


class SlowLandings(FakeLandings):
    """The end of a session takes a while, as it does when decode waits for a pidfd."""

    async def session_ended(self, peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await super().session_ended(peer)


class Overlapping(Sessions):
    """The guard removed: an older session goes on beside a newer one."""

    async def _replace(self, incarnation: int) -> None:
        self._known.pop(incarnation, None)

    async def _end(self, peer: Peer, host: PeerHost) -> None:
        self._known.setdefault(peer.incarnation, peer)
        await super()._end(peer, host)


async def dial_again_and_again(kind: type[Sessions], times: int) -> list[str]:
    """One prefill worker opens sessions without an end of those before; what the landings see."""
    network, landings = MemoryNetwork(Random(1)), SlowLandings()
    sessions = kind(KV_HELLO, {"fake": FakeReceiver()}, agree, rules=RULES)

    async def serve(stream: Stream) -> None:
        await sessions.serve(stream, landings)

    await network.host("decode").listen("decode", {Channel.KV: serve})
    streams = [await network.host("prefill").dial("decode", Channel.KV) for _ in range(times)]
    for stream in streams:
        stream.send(replace(KV_HELLO, incarnation=WRITER))
    await asyncio.sleep(1.0)
    assert len(sessions.peers) == 1
    for stream in streams:
        stream.close()
    await asyncio.sleep(1.0)
    assert sessions.peers == {}
    return landings.story


@pytest.mark.parametrize("times", [2, 5])
def test_a_newer_session_of_a_prefill_worker_begins_after_the_older_one_has_ended(times: int) -> None:
    story = run_virtual(dial_again_and_again(Sessions, times))
    assert story == ["77 begins by fake", "77 ends"] * times


def test_without_the_replacement_sessions_of_one_prefill_worker_overlap() -> None:
    story = run_virtual(dial_again_and_again(Overlapping, 2))
    assert story[:2] == ["77 begins by fake", "77 begins by fake"]


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        (replace(SHAPE, page_tokens=0), "shape.page_tokens: 0"),
        (replace(SHAPE, segments=SHAPE.segments * 9), "shape.segments: are 9"),
        (replace(SHAPE, segments=(replace(SHAPE.segments[0], layers=1 << 31),)), "shape.segments[0].layers"),
    ],
)
@virtual
async def test_pages_that_no_worker_has_are_refused_by_the_fields_name_before_anything_computes_with_them(
    shape: PageShape, field: str
) -> None:
    def never(mine: KvHello, theirs: KvHello) -> tuple[str, str]:
        raise AssertionError("a hostile shape is not compared")

    _, landings, stream = await dial(never)
    stream.send(replace(KV_HELLO, incarnation=WRITER, shape=shape))
    answer = await stream.receive()
    assert isinstance(answer, KvHello) and answer.chosen == "" and field in answer.why
    assert landings.story == []
