"""Quarantined pages come back with proof and never by a timer; a silent writer is killed where that is permitted."""

import asyncio

import pytest

from decode_svc.handoff.quarantine import PATIENCE_SECONDS, Quarantine
from decode_svc.requests import PageOwner
from mesh.messages import Abort, Ticket
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
