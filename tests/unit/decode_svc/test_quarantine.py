"""Quarantined pages come back with proof and never by a timer; a silent writer is killed where that is permitted."""

import asyncio
from functools import partial
from typing import ClassVar

import pytest

from decode_svc.handoff.quarantine import PATIENCE_SECONDS, Quarantine
from decode_svc.requests import PageOwner
from mesh.messages import Abort, Quiet, Ticket
from tests.sim.loop import run_virtual
from tests.unit.decode_svc.fakes import WRITER, Surroundings

TICKET = Ticket(1, 1, bytes(16))


def quarantined(around: Surroundings, writer: int = WRITER) -> Quarantine:
    mine = Quarantine(around.pages, around.sessions, host=around.host, rules=around.rules)
    pages = around.pages.land(3, PageOwner(TICKET, writer, "fake", 0))
    assert pages is not None
    mine.add(pages)
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
def test_a_writer_that_stays_silent_is_killed_or_its_pages_are_stuck(may_kill: bool) -> None:
    async def main() -> None:
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

    run_virtual(main())


def test_a_connected_writer_is_asked_again_every_heartbeat() -> None:
    async def main() -> None:
        around = Surroundings()
        mine = quarantined(around)
        await asyncio.sleep(3.5 * around.rules.heartbeat_seconds)
        assert around.sent_names == ["Abort"] * 4
        mine.close()

    run_virtual(main())


class JudgesByItsFirstPage(Quarantine):
    """The guard removed: any page that is out counts against the writer since it was first seen with one."""

    first: ClassVar[dict[int, float]] = {}

    def _silent_since(self, writer: int) -> float:
        return self.first.setdefault(writer, super()._silent_since(writer))


async def cancelled_every_second(
    kind: type[Quarantine], seconds: int, *, silent: int | None = None
) -> tuple[list[int], int]:
    """A request of one writer is cancelled every second, and the writer answers each after 1.2 s, so that a page is out
    at every look. `silent`: another writer owes an answer all the time. Returns who was killed, and the pages out."""
    around, loop = Surroundings(), asyncio.get_running_loop()
    mine = kind(around.pages, around.sessions, host=around.host, rules=around.rules)
    if silent is not None:
        pages = around.pages.land(1, PageOwner(TICKET, silent, "fake", 0))
        assert pages is not None
        mine.add(pages)
    for number in range(seconds):
        ticket = Ticket(number + 2, 1, bytes(16))
        pages = around.pages.land(1, PageOwner(ticket, WRITER, "fake", 0))
        assert pages is not None
        mine.add(pages)
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


def test_a_writer_that_could_not_be_killed_and_then_answers_is_within_reach_again() -> None:
    async def main() -> None:
        around = Surroundings()
        around.receiver.may_kill = False
        mine = quarantined(around)
        await asyncio.sleep(around.rules.lease_seconds + PATIENCE_SECONDS + 2.0)
        assert mine.stuck_pages == 3
        other = around.pages.land(2, PageOwner(Ticket(2, 1, bytes(16)), WRITER, "fake", 0))
        assert other is not None
        mine.add(other)
        mine.prove(lambda owner: owner.ticket == TICKET)
        assert mine.stuck_pages == 0 and around.pages.counts().quarantined == 2
        mine.close()

    run_virtual(main())
