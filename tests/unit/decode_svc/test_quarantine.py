"""Quarantined pages come back with proof and never by a timer; a silent writer is killed where that is permitted."""

import asyncio
from functools import partial
from math import inf
from typing import ClassVar, cast

import pytest

from decode_svc.handoff.quarantine import PATIENCE_SECONDS, Quarantine
from decode_svc.handoff.sessions import Peer
from decode_svc.request.requests import PageOwner
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Abort, Quiet
from mesh.sessions.session import Session
from tests.sim.loop import run_virtual, virtual
from tests.unit.decode_svc.fakes import WRITER, FakeSession, Surroundings

TICKET = Ticket(1, 1, bytes(16))


def add(around: Surroundings, mine: Quarantine, count: int, owner: PageOwner) -> None:
    """Put so many pages of this owner into quarantine."""
    pages = around.pages.land(count, owner, b"")
    assert pages is not None
    mine.add(owner, pages, "the attempt ended here")


def quarantined(around: Surroundings, writer: int = WRITER, kind: type[Quarantine] = Quarantine) -> Quarantine:
    mine = kind(around.pages, around.sessions, host=around.host, rules=around.rules)
    add(around, mine, 3, PageOwner(TICKET, writer, "fake", 0))
    return mine


async def test_only_one_sided_writers_need_proof() -> None:
    for one_sided in (True, False):
        around = Surroundings(one_sided=one_sided)
        mine = Quarantine(around.pages, around.sessions, host=around.host, rules=around.rules)
        assert mine.needs_proof(around.receiver) is one_sided


async def test_a_proof_frees_its_owners_pages_and_wakes_the_worker() -> None:
    around = Surroundings()
    mine = quarantined(around)
    mine.prove(lambda owner: owner.writer == WRITER + 1)
    assert around.pages.counts().quarantined == 3 and around.host.wakes == 0
    mine.prove(lambda owner: owner.writer == WRITER)
    assert around.pages.counts().free == 16 and around.host.wakes == 1
    mine.close()


async def test_a_new_session_is_asked_again_for_its_own_pages_only() -> None:
    around = Surroundings()
    mine = quarantined(around, writer=WRITER + 1)
    mine.ask_again(around.peer)
    assert around.prefill.sent == []
    around.peer.incarnation = WRITER + 1
    mine.ask_again(around.peer)
    assert around.prefill.sent == [Abort(TICKET)]
    mine.close()


@pytest.mark.parametrize("may_kill", [True, False])
@virtual
async def test_a_writer_that_stays_silent_is_killed_or_its_pages_are_stuck(may_kill: bool) -> None:
    around = Surroundings()
    around.receiver.may_kill = may_kill
    around.sessions.peers.clear()
    mine = quarantined(around)
    patience = around.rules.lease_seconds + PATIENCE_SECONDS
    await asyncio.sleep(patience - 0.5)
    assert around.receiver.killed == [] and mine.stuck_pages == 0
    await asyncio.sleep(2.0)
    assert around.receiver.killed == [WRITER] * len(around.receiver.killed) != []
    assert mine.stuck_pages == (0 if may_kill else 3)
    await asyncio.sleep(60.0)
    assert around.pages.counts().quarantined == 3, "time is no proof"
    around.receiver.dead = True
    await asyncio.sleep(2.0)
    assert around.pages.counts().free == 16 and mine.stuck_pages == 0


@pytest.mark.parametrize("gave_up", [True, False])
@virtual
async def test_a_writer_that_gave_up_while_this_worker_was_stopped_is_killed_only_after_it_dialled_again(
    gave_up: bool,
) -> None:
    around = Surroundings()
    around.prefill.given_up = gave_up
    around.sessions._known[WRITER] = around.sessions.peers.pop(WRITER)  # its end is being handled
    mine = quarantined(around)
    around.sessions._known.clear()
    patience = around.rules.lease_seconds + PATIENCE_SECONDS
    await asyncio.sleep(patience + 2.0)
    assert bool(around.receiver.killed) is not gave_up and mine.stuck_pages == (3 if gave_up else 0)
    around.receiver.killed.clear()
    again = FakeSession()
    again.heard_seconds = asyncio.get_running_loop().time()
    around.sessions.peers[WRITER] = Peer(WRITER, "fake", cast(Session, again))
    await asyncio.sleep(patience + 2.0)
    assert around.receiver.killed, "it is silent in a session"
    mine.close()


@pytest.mark.parametrize("attached", [True, False])
@virtual
async def test_a_worker_that_has_no_session_with_anybody_kills_no_writer(attached: bool) -> None:
    """Another process has its address, so the writer cannot dial it. Once somebody hears it, it waits anew."""
    around = Surroundings()
    around.host.attached = attached
    around.sessions.peers.clear()
    mine, patience = quarantined(around), around.rules.lease_seconds + PATIENCE_SECONDS
    await asyncio.sleep(3 * patience)
    assert bool(around.receiver.killed) is attached
    around.receiver.killed.clear()
    around.host.attached = True
    await asyncio.sleep(patience - 1.0)
    assert bool(around.receiver.killed) is attached
    await asyncio.sleep(3.0)
    assert around.receiver.killed and around.pages.counts().quarantined == 3
    mine.close()


@virtual
async def test_a_connected_writer_is_asked_again_every_heartbeat() -> None:
    around = Surroundings()
    mine = quarantined(around)
    await asyncio.sleep(3.5 * around.rules.heartbeat_seconds)
    assert around.sent_names == ["Abort"] * 4
    mine.close()


class JudgesByItsFirstPage(Quarantine):
    """The guard removed: any page that is out counts against the writer since it was first seen with one."""

    first: ClassVar[dict[int, float]] = {}

    def _silent_since(self, writer: int, owes_since: float) -> float:
        return self.first.setdefault(writer, owes_since)


async def cancelled_every_second(
    kind: type[Quarantine], seconds: int, *, silent: int | None = None
) -> tuple[list[int], int]:
    """A request of one writer is cancelled every second, and the writer answers each after 1.2 s, so that a page is out
    at every look. `silent`: another writer owes an answer all the time. Returns who was killed, and the pages out."""
    around, loop = Surroundings(), asyncio.get_running_loop()
    mine = kind(around.pages, around.sessions, host=around.host, rules=around.rules)
    if silent is not None:
        add(around, mine, 1, PageOwner(TICKET, silent, "fake", 0))
    for number in range(seconds):
        ticket = Ticket(number + 2, 1, bytes(16))
        add(around, mine, 1, PageOwner(ticket, WRITER, "fake", 0))
        quiet = Quiet(ticket, WRITER)
        loop.call_later(1.2, mine.prove, partial(PageOwner.quieted_by, quiet=quiet))
        await asyncio.sleep(1.0)
    await asyncio.sleep(2.0)
    mine.close()
    return around.receiver.killed, around.pages.counts().quarantined


def test_a_writer_that_answers_every_cancel_lives_however_many_come() -> None:
    assert run_virtual(cancelled_every_second(Quarantine, 1800)) == ([], 0)


def test_without_looking_at_the_answers_a_healthy_writer_is_killed() -> None:
    JudgesByItsFirstPage.first.clear()
    killed, _ = run_virtual(cancelled_every_second(JudgesByItsFirstPage, 30))
    assert set(killed) == {WRITER}


def test_a_silent_writer_is_killed_though_another_one_answers() -> None:
    killed, out = run_virtual(cancelled_every_second(Quarantine, 60, silent=WRITER + 1))
    assert set(killed) == {WRITER + 1} and out == 1


class DeafToHeartbeats(Quarantine):
    """The guard removed: only a proof shows that a writer lives."""

    def _silent_since(self, writer: int, owes_since: float) -> float:
        return owes_since


async def one_write_never_ends(kind: type[Quarantine], *, falls_silent: float = inf) -> tuple[list[float], int, int]:
    """One write of the writer does not end, while its heartbeats come until `falls_silent`. Returns when within two
    minutes the worker tried to kill it, the stuck pages at the end, and how often the worker was woken."""
    around, loop = Surroundings(), asyncio.get_running_loop()
    mine, began, kills = quarantined(around, kind=kind), loop.time(), list[float]()
    for _ in range(240):
        if loop.time() - began < falls_silent:
            around.prefill.heard_seconds = loop.time()
        elif loop.time() - began > falls_silent + around.rules.lease_seconds:
            around.sessions.peers.clear()  # its session has ended
        before = len(around.receiver.killed)
        await asyncio.sleep(0.5)
        kills += [loop.time() - began] * (len(around.receiver.killed) - before)
    stuck = mine.stuck_pages
    mine.close()
    return kills, stuck, around.host.wakes


def test_a_writer_that_sends_heartbeats_is_not_killed_for_a_write_that_never_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run_virtual(one_write_never_ends(Quarantine)) == ([], 3, 1)
    alarms = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert alarms == ["3 pages stay quarantined: prefill process 4d lives, but a write of it does not end; restart it"]


@virtual
async def test_a_write_that_never_ends_raises_one_alarm_though_its_writer_answers_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around, loop = Surroundings(), asyncio.get_running_loop()
    mine = quarantined(around)
    for number in range(60):
        around.prefill.heard_seconds = loop.time()
        ticket = Ticket(number + 2, 1, bytes(16))
        add(around, mine, 1, PageOwner(ticket, WRITER, "fake", 0))
        loop.call_later(1.2, mine.prove, partial(PageOwner.quieted_by, quiet=Quiet(ticket, WRITER)))
        await asyncio.sleep(1.0)
    assert around.receiver.killed == [] and mine.stuck_pages == 3
    mine.close()
    told = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert told == [
        ("WARNING", "3 pages are quarantined (the attempt ended here)"),
        ("ERROR", "3 pages stay quarantined"),
    ]


def test_without_hearing_heartbeats_a_process_that_lives_is_killed() -> None:
    kills, _, _ = run_virtual(one_write_never_ends(DeafToHeartbeats))
    assert kills and kills[0] < 15


def test_a_writer_is_killed_a_lease_and_five_seconds_after_its_last_heartbeat() -> None:
    kills, _, _ = run_virtual(one_write_never_ends(Quarantine, falls_silent=40.0))
    assert kills and 50.0 <= kills[0] <= 52.0


@virtual
async def test_a_writer_that_could_not_be_killed_and_then_answers_is_within_reach_again() -> None:
    around = Surroundings()
    around.receiver.may_kill = False
    mine = quarantined(around)
    await asyncio.sleep(around.rules.lease_seconds + PATIENCE_SECONDS + 2.0)
    assert mine.stuck_pages == 3
    add(around, mine, 2, PageOwner(Ticket(2, 1, bytes(16)), WRITER, "fake", 0))
    mine.prove(lambda owner: owner.ticket == TICKET)
    assert mine.stuck_pages == 0 and around.pages.counts().quarantined == 2
    mine.close()


@virtual
async def test_a_person_learns_once_that_pages_wait_for_a_silent_writer_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around = Surroundings()
    mine = quarantined(around)
    await asyncio.sleep(around.rules.lease_seconds - 0.5)
    assert not caplog.records, "most proofs come sooner"
    await asyncio.sleep(3.5)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"3 pages are quarantined (the attempt ended here): prefill process {WRITER:x}" in record.getMessage()
    (holder,) = mine.holders()
    assert (holder.writer, holder.request, holder.why, len(holder.pages)) == (
        WRITER,
        1,
        "the attempt ended here",
        3,
    )
    mine.prove(lambda owner: owner.writer == WRITER)
    assert list(mine.holders()) == []
    mine.close()
