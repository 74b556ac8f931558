"""Links to decode workers: dialed once, kept while needed, and each session with a writer of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest

from kvtransfer.transfer import Pool, TransferError
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import KvHello, Later, Ready
from mesh.messages.message import Heartbeat, Message
from mesh.network.interface import Channel, Stream
from mesh.network.memory_network import MemoryNetwork
from mesh.rules import RULES
from prefill_svc.links import FORGET_SECONDS, REDIAL_SECONDS, DecodeLink, Links, secret_for, without
from tests.sim.loop import virtual
from tests.unit.prefill_svc.parts import SHAPE, ManualWriter, of_size

TICKET = Ticket(1, 1, bytes(16))
MINE = KvHello(5, "class", SHAPE, "host", 0, 0, transports=("manual",))
THEIRS = KvHello(7, "class", SHAPE, "host", 0, 0, chosen="manual", why="a test", handle=b"pool")


class ManualTransport:
    """Hands out a writer per session, or fails to connect."""

    name = "manual"

    def __init__(self) -> None:
        self.writers: list[ManualWriter] = []
        self.handles: list[bytes] = []
        self.broken = False
        self.connect_seconds = 0.0

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> ManualWriter:
        await asyncio.sleep(self.connect_seconds)
        if self.broken:
            raise TransferError("no way to the pool")
        self.handles.append(handle)
        self.writers.append(ManualWriter())
        return self.writers[-1]


class LinkEvents:
    """A host that notes what its links report."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self.messages: list[Message] = []

    def _note(self, what: str) -> None:
        self.events.append((asyncio.get_running_loop().time(), what))

    def wake(self) -> None:
        self._note("wake")

    def from_decode(self, link: DecodeLink, message: Message) -> None:
        self.messages.append(message)

    def link_ended(self, link: DecodeLink) -> None:
        self._note("ended")

    def link_unreachable(self, link: DecodeLink) -> None:
        self._note("unreachable")

    def names(self) -> list[str]:
        return [name for _, name in self.events]


class DecodeEnd:
    """The other end: answers each KvHello and keeps the streams."""

    def __init__(self, answer: KvHello = THEIRS) -> None:
        self.answer = answer
        self.streams: list[Stream] = []
        self.received: list[Message] = []

    async def accept(self, stream: Stream) -> None:
        self.streams.append(stream)
        self.received.append(hello := await stream.receive())
        assert isinstance(hello, KvHello)
        stream.send(replace(self.answer, chosen=hello.transports[0]) if self.answer.chosen else self.answer)
        while True:
            self.received.append(await stream.receive())


@virtual
async def with_links(
    test: Callable[[Links, LinkEvents, ManualTransport, DecodeEnd], Awaitable[None]],
    listen: bool,
    mine: KvHello = MINE,
) -> None:
    network, host, transport, decode = MemoryNetwork(Random(1)), LinkEvents(), ManualTransport(), DecodeEnd()
    if listen:
        await network.host("decode").listen("decode", {Channel.KV: decode.accept})
    links = Links(
        host,
        network.host("prefill"),
        hello=mine,
        transports={"manual": cast(Any, transport), "slow": cast(Any, transport)},
        pool=cast(Any, None),
        rules=RULES,
    )
    await test(links, host, transport, decode)
    await links.aclose()


def test_the_first_use_of_an_address_begins_a_session_with_a_writer() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        link = links.to("decode")
        assert not link.up and links.to("decode") is link and links.get("elsewhere") is None
        link.send(Ready(TICKET))
        await asyncio.sleep(0.1)
        assert link.up and link.incarnation == 7 and link.writer is transport.writers[0]
        assert transport.handles == [b"pool"] and host.names() == ["wake"] and len(decode.streams) == 1
        link.send(Ready(TICKET))
        decode.streams[0].send(Later(TICKET))
        await asyncio.sleep(0.1)
        shown = replace(MINE, secret=secret_for("decode", MINE.secret))
        assert decode.received == [shown, Ready(TICKET)], "what was sent without a session is dropped"
        assert host.messages == [Later(TICKET)]

    with_links(test, listen=True)


def test_an_address_where_no_worker_listens_is_dialed_ever_more_slowly_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        links.to("decode")
        await asyncio.sleep(20)
        times = [at for at, name in host.events if name == "unreachable"]
        gaps = [after - before for before, after in pairwise(times)]
        assert abs(gaps[0] - REDIAL_SECONDS[0]) < 0.01 and abs(gaps[-1] - REDIAL_SECONDS[1]) < 0.01

    with_links(test, listen=False)
    assert [line.partition(":")[0] for line in caplog.messages] == ["cannot reach decode decode"]


def test_a_decode_worker_that_refuses_is_unreachable() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        decode.answer = KvHello(7, "class", SHAPE, "host", 0, 0, chosen="", why="another layout")
        link = links.to("decode")
        await asyncio.sleep(0.04)
        assert not link.up and host.names() == ["unreachable"]

    with_links(test, listen=True)


def test_a_writer_that_cannot_connect_makes_no_session() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        transport.broken = True
        link = links.to("decode")
        await asyncio.sleep(0.04)
        assert not link.up and host.names() == ["unreachable"]
        transport.broken = False
        await asyncio.sleep(0.2)
        assert link.up

    with_links(test, listen=True)


def test_after_a_transport_that_reaches_no_pool_the_next_dial_offers_the_others() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        def offers() -> list[tuple[str, ...]]:
            return [each.transports for each in decode.received if isinstance(each, KvHello)]

        transport.broken = True
        links.to("decode")
        await asyncio.sleep(0.3)
        assert offers()[:3] == [("manual", "slow"), ("slow",), ("manual",)]
        transport.broken = False
        await asyncio.sleep(2)
        assert links.to("decode").up
        decode.streams[-1].close()
        await asyncio.sleep(2)
        assert offers()[-1] == ("manual", "slow"), "a session that ended says nothing about its transport"

    mine = replace(MINE, transports=("manual", "slow"))
    with_links(test, listen=True, mine=mine)


def test_the_only_transport_is_offered_again_and_again() -> None:
    assert without("rdma", ("rdma",)) == ("rdma",)
    assert without("", ("shm", "tcp")) == ("shm", "tcp")


def test_after_the_end_of_a_session_the_next_one_has_a_new_writer() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        link = links.to("decode")
        await asyncio.sleep(0.1)
        transport.writers[0].bytes_written = 100
        decode.streams[0].close()
        await asyncio.sleep(0.02)
        assert host.names() == ["wake", "ended"] and not link.up and link.writer is None
        assert 0.1 <= link.ended_seconds <= 0.12
        await asyncio.sleep(0.2)
        assert link.up and link.writer is transport.writers[1] and host.names() == ["wake", "ended", "wake"]
        transport.writers[1].bytes_written = 11
        assert links.bytes_written == 111

    with_links(test, listen=True)


def test_a_writer_that_takes_long_to_connect_keeps_its_session_alive() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        transport.connect_seconds = 20.0
        link = links.to("decode")
        await asyncio.sleep(19)
        assert not link.up and decode.received.count(Heartbeat()) >= 19 / RULES.lease_seconds
        await asyncio.sleep(2)
        assert link.up and host.names() == ["wake"] and len(decode.streams) == 1

    with_links(test, listen=True)


@pytest.mark.parametrize("connect_seconds", [0.0, 20.0])
def test_a_link_that_ends_while_its_writer_connects_leaves_no_writer(connect_seconds: float) -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        transport.connect_seconds = connect_seconds
        links.to("decode")
        await asyncio.sleep(5)
        await links.aclose()
        assert all(writer.closed for writer in transport.writers)
        assert len(transport.writers) == (not connect_seconds)

    with_links(test, listen=True)


def test_a_writer_that_broke_ends_its_session_and_the_next_one_brings_another() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        link = links.to("decode")
        await asyncio.sleep(0.1)
        broken = transport.writers[0]
        link.broke(broken)
        await asyncio.sleep(0.3)
        assert host.names() == ["wake", "ended", "wake"] and link.writer is transport.writers[1]
        link.broke(broken)  # a second write of the old one fails later
        await asyncio.sleep(0.3)
        assert host.names() == ["wake", "ended", "wake"]

    with_links(test, listen=True)


def test_a_link_that_no_prompt_wants_is_forgotten() -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        links.to("decode")
        await asyncio.sleep(FORGET_SECONDS / 2)
        links.to("decode")
        await asyncio.sleep(FORGET_SECONDS - 1)
        assert links.get("decode") is not None
        await asyncio.sleep(4)
        assert links.get("decode") is None and list(links) == []

    with_links(test, listen=False)


def test_a_pool_of_other_pages_than_decode_describes_makes_no_session(caplog: pytest.LogCaptureFixture) -> None:
    async def test(links: Links, host: LinkEvents, transport: ManualTransport, decode: DecodeEnd) -> None:
        decode.answer = replace(THEIRS, shape=of_size(8))
        link = links.to("decode")
        await asyncio.sleep(0.04)
        assert not link.up and host.names() == ["unreachable"]
        assert "decode describes pages of 8 tokens" in caplog.text and "pages of 4 tokens" in caplog.text

    with_links(test, listen=True)
