"""A stranger that shows a prefill worker's incarnation gets no session, hears no ticket, and proves nothing."""

import asyncio
from dataclasses import dataclass, replace
from random import Random

import pytest

from decode_svc.handoff import writers
from decode_svc.handoff.landings import Landings
from decode_svc.handoff.writers import SECRET_BYTES, Writers
from decode_svc.request.requests import DecodePhase
from mesh.messages.kv_messages import Abort, Commit, Computing, KvHello, Landing, Quiet, Ready, Written
from mesh.messages.message import Message
from mesh.network.interface import Channel, Stream, StreamClosed
from mesh.network.memory_network import MemoryNetwork
from prefill_svc.links import secret_for
from tests.sim.loop import virtual
from tests.unit.decode_svc.fakes import KV_HELLO, WRITER, Surroundings

MINE = replace(KV_HELLO, incarnation=WRITER, secret=b"of the real process")
STRANGE = replace(MINE, secret=b"of the stranger")


@dataclass
class Decode:
    """A decode worker's sessions and landings, reached over a network."""

    around: Surroundings
    landings: Landings
    network: MemoryNetwork

    async def hello(self, host: str, hello: KvHello) -> tuple[Stream, KvHello]:
        stream = await self.network.host(host).dial("decode", Channel.KV)
        stream.send(hello)
        answer = await stream.receive()
        assert isinstance(answer, KvHello)
        return stream, answer


async def decode() -> Decode:
    around, network = Surroundings(), MemoryNetwork(Random(1))
    around.sessions.peers.clear()
    mine = Landings(
        *(around.requests, around.pages, around.pool, around.sessions, around.room),
        host=around.host,
        rules=around.rules,
    )

    async def serve(stream: Stream) -> None:
        await around.sessions.serve(stream, mine)

    await network.host("decode").listen("decode", {Channel.KV: serve})
    return Decode(around, mine, network)


async def heard(stream: Stream, seconds: float = 3.0) -> list[Message]:
    """The messages that arrive within this time, without heartbeats."""
    found: list[Message] = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                found.append(await stream.receive())
    except (TimeoutError, StreamClosed):
        return [message for message in found if type(message).__name__ != "Heartbeat"]


async def quarantined(one: Decode) -> Stream:
    """Two pages are quarantined, because a landing was fenced while its writer lives. Returns the writer's stream."""
    stream, _ = await one.hello("prefill", MINE)
    request = one.around.add(1)
    stream.send(Ready(request.ticket))
    assert isinstance(await stream.receive(), Landing)
    one.landings.fence(request)
    assert one.around.pages.counts().quarantined == 2
    return stream


@pytest.mark.parametrize("alive", [True, False], ids=["beside the living session", "after its end"])
@virtual
async def test_a_stranger_gets_no_session_no_handle_and_no_ticket(alive: bool) -> None:
    one = await decode()
    stream = await quarantined(one)
    if not alive:
        stream.close()
        await asyncio.sleep(0.1)
    strange, answer = await one.hello("stranger", STRANGE)
    assert (answer.chosen, answer.handle) == ("", b"") and "belongs to another process" in answer.why
    assert await heard(strange) == []
    assert one.around.pages.counts().quarantined == 2
    one.landings.quarantine.close()


@virtual
async def test_negative_control_with_the_incarnation_alone_a_stranger_hears_the_ticket_and_frees_the_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "same_process", lambda known, hello: True)
    one = await decode()
    await quarantined(one)
    strange, _ = await one.hello("stranger", STRANGE)
    asked = await strange.receive()
    assert isinstance(asked, Abort)
    strange.send(Quiet(asked.ticket, WRITER))
    await asyncio.sleep(0.1)
    assert one.around.pages.counts().quarantined == 0
    one.landings.quarantine.close()


@virtual
async def test_the_same_process_is_asked_again_in_its_next_session_and_its_quiet_counts() -> None:
    one = await decode()
    (await quarantined(one)).close()
    await asyncio.sleep(0.1)
    again, answer = await one.hello("prefill", MINE)
    assert answer.chosen == "fake"
    asked = await again.receive()
    assert isinstance(asked, Abort)
    again.send(Quiet(asked.ticket, WRITER))
    await asyncio.sleep(0.1)
    assert one.around.pages.counts().quarantined == 0
    one.landings.quarantine.close()


@pytest.mark.parametrize("name", ["Quiet", "Commit", "Written", "Computing"])
@virtual
async def test_another_worker_that_knows_the_ticket_changes_nothing(name: str) -> None:
    """The stranger is a member of the mesh with an incarnation of its own."""
    one = await decode()
    stream, _ = await one.hello("prefill", MINE)
    request = one.around.add(1)
    stream.send(Ready(request.ticket))
    landing = await stream.receive()
    assert isinstance(landing, Landing) and request.landing is not None
    other, _ = await one.hello("other", replace(MINE, incarnation=WRITER + 1))
    shape = one.around.pool.shape
    sums = tuple(one.around.pool.checksum(page, 0, shape.layers) for page in landing.pages)
    before = request.landing.progress_seconds
    other.send(
        {
            "Quiet": Quiet(request.ticket, WRITER),
            "Commit": Commit(request.ticket, 0, None),
            "Written": Written(request.ticket, 0, shape.layers, 0, (0, 1), sums),
            "Computing": Computing(request.ticket, 60_000),
        }[name]
    )
    await asyncio.sleep(0.1)
    assert request.phase is DecodePhase.LANDING and request.landing is not None
    assert request.landing.valid == [0, 0] and request.landing.commit is None
    assert (request.landing.progress_seconds, request.landing.longest_step_ms) == (before, 0)
    assert one.around.pages.counts().landing == 2
    other.send(Ready(request.ticket))
    assert not any(isinstance(message, Landing) for message in await heard(other, 0.5))


@virtual
async def test_a_commit_of_another_worker_frees_no_quarantined_page() -> None:
    one = await decode()
    await quarantined(one)
    other, _ = await one.hello("other", replace(MINE, incarnation=WRITER + 1))
    request = one.around.requests[1]
    other.send(Commit(request.ticket, 0, None))
    await asyncio.sleep(0.1)
    assert one.around.pages.counts().quarantined == 2
    one.landings.quarantine.close()


def test_the_first_process_owns_an_incarnation_and_old_ones_are_forgotten_at_last() -> None:
    known = Writers(most=3)
    assert [known.problem(hello) != "" for hello in (MINE, STRANGE, MINE)] == [False, True, False]
    assert known.problem(replace(MINE, incarnation=5, secret=bytes(SECRET_BYTES + 1))).startswith(
        "secret: has 65 bytes"
    )
    for incarnation in (1, 2, WRITER, 3):
        assert known.problem(replace(MINE, incarnation=incarnation)) == ""
    assert known.problem(STRANGE) != "" and known.problem(replace(STRANGE, incarnation=1)) == ""


def test_a_prefill_worker_shows_each_decode_worker_another_secret() -> None:
    drawn = bytes(range(32))
    one, other = secret_for("decode-0:7000", drawn), secret_for("decode-1:7000", drawn)
    assert one != other and one == secret_for("decode-0:7000", drawn) and len(one) <= SECRET_BYTES
    assert one != secret_for("decode-0:7000", bytes(32)) and drawn not in one


def test_a_hello_shows_its_secret_to_no_log() -> None:
    assert "of the real process" not in repr(MINE)
