"""How a landing begins, and every way in which it ends."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from decode_svc.handoff.landings import Landings
from decode_svc.request.requests import DecodePhase, DecodeRequest
from kvtransfer.transfer import Arrived
from mesh.messages.jobs import Reason, Ticket, Token
from mesh.messages.kv_messages import Commit, Computing, Landing, Quiet, Ready, Written
from mesh.sessions.session import BadMessage
from tests.sim.loop import virtual
from tests.unit.decode_svc.fakes import WRITER, Surroundings

FIRST = Token(0, 5)


def landings(around: Surroundings) -> Landings:
    return Landings(
        around.requests,
        around.pages,
        around.pool,
        around.sessions,
        around.room,
        host=around.host,
        rules=around.rules,
    )


def landed(around: Surroundings, mine: Landings, key: int = 1) -> DecodeRequest:
    """A request whose prefill worker has asked Ready and got Landing: two pages."""
    one = around.add(key)
    mine.on_message(around.peer, Ready(one.ticket))
    return one


def begun(**more: Any) -> tuple[Surroundings, Landings, DecodeRequest]:
    around = Surroundings(**more)
    mine = landings(around)
    return around, mine, landed(around, mine)


def written(around: Surroundings, ticket: Ticket, pages: tuple[int, ...], ids: tuple[int, ...]) -> Written:
    layers = around.pool.shape.layers
    return Written(ticket, 0, layers, 0, pages, tuple(around.pool.checksum(page, 0, layers) for page in ids))


async def test_ready_is_answered_with_every_page_that_the_prompt_needs() -> None:
    around, mine, one = begun()
    assert one.phase is DecodePhase.LANDING and one.landing is not None
    assert around.prefill.sent == [Landing(one.ticket, 0, one.landing.pages)] and len(one.landing.pages) == 2
    assert around.pages.counts().landing == 2 and one.ticket.pack() in around.receiver.open_tickets
    mine.on_message(around.peer, Ready(one.ticket))
    assert around.prefill.sent[1] == around.prefill.sent[0], "after a new session the same Landing again"


async def test_without_room_for_all_pages_ready_is_answered_later_and_nothing_is_taken() -> None:
    around = Surroundings(pages=1)
    one = landed(around, landings(around))
    assert around.sent_names == ["Later"] and one.passed == 0 and around.pages.counts().free == 1


@pytest.mark.parametrize(
    ("phase", "answer"),
    [(DecodePhase.RUNNING, "Landed"), (DecodePhase.LOST, "Abort"), (DecodePhase.LOCAL, "Abort")],
)
async def test_ready_for_a_request_that_needs_no_landing_says_so(phase: DecodePhase, answer: str) -> None:
    around = Surroundings()
    one = around.add(1, phase=phase)
    landings(around).on_message(around.peer, Ready(one.ticket))
    assert around.sent_names == [answer]


async def test_a_ready_before_its_open_is_put_off_and_one_of_an_old_attempt_refused() -> None:
    around = Surroundings()
    mine, one = landings(around), around.add(1)
    for attempt in (0, 2):
        mine.on_message(around.peer, Ready(replace(one.ticket, attempt=attempt)))
    mine.on_message(around.peer, Ready(replace(one.ticket, request=9)))
    assert around.sent_names == ["Abort", "Later", "Later"] and one.phase is DecodePhase.OPEN


async def test_written_spans_and_commit_admit_the_request_with_prefills_first_token() -> None:
    around, mine, one = begun()
    assert one.landing is not None
    mine.on_message(around.peer, written(around, one.ticket, (0, 1), one.landing.pages))
    mine.on_message(around.peer, Commit(one.ticket, 0, FIRST))
    assert around.host.running == [one] and one.phase is DecodePhase.RUNNING
    assert (one.filled, one.tokens[-1], one.produced) == (8, 5, {0: FIRST})
    assert around.sent_names == ["Landing", "Landed"] and around.pages.counts().in_use == 2
    assert (mine.counts()["admitted_remote"], mine.counts()["admitted_patched"]) == (1, 0)


async def test_two_sided_frames_may_come_after_commit() -> None:
    around, mine, one = begun(one_sided=False)
    mine.on_message(around.peer, Commit(one.ticket, 0, FIRST))
    assert one.phase is DecodePhase.LANDING and one.landing is not None and around.receiver.arrived is not None
    for index, page in enumerate(one.landing.pages):
        around.receiver.arrived(Arrived(one.ticket.pack(), index, 0, 2, 0, around.pool.checksum(page, 0, 2)))
    assert one.phase is DecodePhase.RUNNING and around.host.running == [one]


async def test_a_second_copy_of_a_page_keeps_the_request_out_until_it_is_complete_and_checked() -> None:
    around, mine, one = begun(one_sided=False)
    assert one.landing is not None and around.receiver.arrived is not None
    sums = [around.pool.checksum(page, 0, 2) for page in one.landing.pages]
    begins, arrived, ticket = around.receiver.begins, around.receiver.arrived, one.ticket.pack()
    assert begins(0, 0, 2) and begins(0, 0, 2), "a frame that is late, and its second copy"
    arrived(Arrived(ticket, 0, 0, 2, 0, sums[0]))
    assert begins(1, 0, 2)
    arrived(Arrived(ticket, 1, 0, 2, 0, sums[1]))
    mine.on_message(around.peer, Commit(one.ticket, 0, FIRST))
    assert one.phase is DecodePhase.LANDING, "the second copy may change what was checked"
    assert not begins(1, 0, 1), "no frame changes layers that are valid"
    arrived(Arrived(ticket, 0, 0, 2, 1, sums[0]))
    assert one.phase is DecodePhase.RUNNING and around.host.running == [one]


async def test_a_second_copy_that_is_damaged_makes_its_layers_invalid() -> None:
    around, mine, one = begun(one_sided=False)
    assert one.landing is not None and around.receiver.arrived is not None
    right = around.pool.checksum(one.landing.pages[0], 0, 1)
    for layer in (0, 1):
        assert around.receiver.begins(0, layer, 1)
    assert around.receiver.begins(0, 0, 2), "the second copy"
    around.receiver.arrived(Arrived(one.ticket.pack(), 0, 0, 1, 0, right))
    around.receiver.arrived(Arrived(one.ticket.pack(), 0, 0, 2, 1, right + 1))
    assert one.landing.valid == [0b00, 0b00] and mine.counts()["spans_damaged"] == 1
    assert around.receiver.begins(0, 0, 1)
    around.receiver.arrived(Arrived(one.ticket.pack(), 0, 0, 1, 1, right))
    assert one.landing.valid == [0b01, 0b00]
    assert around.receiver.begins(0, 0, 2), "it has a layer that is not valid"
    assert one.landing.valid == [0b00, 0b00], "and bytes of it go into the one that was"


async def test_quiet_gives_a_declined_landing_back() -> None:
    around, mine, one = begun()
    assert mine.bytes_landed == 2 * around.pool.shape.page_bytes
    mine.on_message(around.peer, Quiet(one.ticket, WRITER))
    assert one.phase is DecodePhase.OPEN and one.landing is None and mine.bytes_landed == 0
    assert around.pages.counts().free == 16 and around.receiver.open_tickets == {}


async def test_quiet_from_another_process_leaves_the_landing_open() -> None:
    around, mine, one = begun()
    mine.on_message(around.peer, Quiet(one.ticket, WRITER + 1))
    assert one.phase is DecodePhase.LANDING and around.pages.counts().landing == 2


async def test_quiet_during_a_repair_has_the_missing_rows_computed_here() -> None:
    around, mine, one = begun()
    assert one.landing is not None
    mine.on_message(around.peer, written(around, one.ticket, (0,), one.landing.pages[:1]))
    mine.on_message(around.peer, Commit(one.ticket, 0, FIRST))
    assert around.sent_names == ["Landing", "Resend"]
    mine.on_message(around.peer, Quiet(one.ticket, WRITER))
    assert one.phase is DecodePhase.RUNNING and (one.filled, one.pending) == (4, 4)
    assert mine.counts()["admitted_patched"] == 1


@pytest.mark.parametrize(("one_sided", "quarantined"), [(True, 2), (False, 0)])
async def test_a_fenced_landing_waits_for_proof_only_where_its_writer_reaches_the_pages(
    one_sided: bool, quarantined: int
) -> None:
    around, mine, one = begun(one_sided=one_sided)
    mine.fence(one)
    assert around.pages.counts().quarantined == quarantined and around.sent_names == ["Landing", "Abort"]
    mine.on_message(around.peer, Quiet(one.ticket, WRITER + 1))
    assert around.pages.counts().quarantined == quarantined, "another process answers"
    mine.on_message(around.peer, Quiet(one.ticket, WRITER))
    assert around.pages.counts().free == 16
    mine.quarantine.close()


async def test_a_commit_after_the_fence_is_proof_for_its_round_only() -> None:
    around, mine, one = begun()
    mine.fence(one)
    mine.on_message(around.peer, Commit(one.ticket, 1, None))
    assert around.pages.counts().quarantined == 2
    mine.on_message(around.peer, Commit(one.ticket, 0, None))
    assert around.pages.counts().quarantined == 0
    mine.quarantine.close()


@pytest.mark.parametrize(("dead", "whole"), [(True, True), (True, False), (False, True)])
async def test_when_the_session_ends_only_a_complete_landing_of_a_dead_writer_runs_on(dead: bool, whole: bool) -> None:
    around, mine, one = begun()
    assert one.landing is not None
    mine.on_message(around.peer, written(around, one.ticket, (0, 1)[: 1 + whole], one.landing.pages[: 1 + whole]))
    around.receiver.dead = dead
    await mine.session_ended(around.peer)
    if dead and whole:
        assert around.host.running == [one] and one.pending == 1, "the last row is computed again"
    else:
        assert around.host.reported == [(1, Reason.LANDING_LOST)] and one.phase is DecodePhase.LOST
    assert around.pages.counts().quarantined == (0 if dead else 2)
    mine.quarantine.close()


@virtual
async def test_a_landing_without_progress_is_lost_and_one_whose_prefill_computes_is_not() -> None:
    around = Surroundings()
    mine = landings(around)
    idle, busy = landed(around, mine, 1), landed(around, mine, 2)
    for _ in range(5):
        await asyncio.sleep(around.rules.progress_seconds / 2)
        mine.on_message(around.peer, Computing(busy.ticket, 10))
    assert around.host.reported == [(1, Reason.NO_PROGRESS)] and idle.phase is DecodePhase.LOST
    assert busy.phase is DecodePhase.LANDING
    mine.on_message(around.peer, Computing(busy.ticket, 3000))  # steps of three seconds
    await asyncio.sleep(around.rules.progress_seconds * 5)
    assert busy.phase is DecodePhase.LANDING
    mine.quarantine.close()


async def test_a_landing_that_ends_leaves_a_structured_event(caplog: pytest.LogCaptureFixture) -> None:
    _, mine, one = begun()
    caplog.set_level("DEBUG", "baton.decode")
    mine.fence(one, proof=True)
    (record,) = caplog.records
    facts = {name: getattr(record, name) for name in ("event", "request", "spans_valid", "spans_total", "proof")}
    assert facts == {"event": "landing_ended", "request": 1, "spans_valid": 0, "spans_total": 4, "proof": True}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"checksums": (1,)}, "Written.checksums: are 1, for 2 pages"),
        ({"layers": 1 << 31}, "Written.first_layer, layers: 0[+]2147483648 are no layers"),
        ({"layers": 0}, "Written.first_layer, layers"),
        ({"pages": (0, 0)}, "Written.pages: names a page twice"),
    ],
)
async def test_written_that_no_writer_sends_is_refused_by_its_field(more: dict[str, Any], why: str) -> None:
    around, mine, one = begun()
    assert one.landing is not None
    right = written(around, one.ticket, (0, 1), one.landing.pages)
    with pytest.raises(BadMessage, match=why):
        mine.on_message(around.peer, replace(right, **more))
    mine.on_message(around.peer, right)
    assert one.landing.complete, "the right one counts"


@pytest.mark.parametrize("first", [Token(1, 5), Token(0, 300), Token(0, (1 << 32) - 1)])
async def test_a_first_token_that_does_not_continue_the_text_is_refused_and_the_request_does_not_run(
    first: Token,
) -> None:
    """It would become part of the text: a later Open of the gateway, or a step with others, would fail by it."""
    around = Surroundings()
    mine = landings(around)
    mine.vocabulary = 300
    one = landed(around, mine)
    assert one.landing is not None
    mine.on_message(around.peer, written(around, one.ticket, (0, 1), one.landing.pages))
    with pytest.raises(BadMessage, match=r"Commit\.first"):
        mine.on_message(around.peer, Commit(one.ticket, 0, first))
    assert one.phase is DecodePhase.LANDING and one.produced == {}
    mine.on_message(around.peer, Commit(one.ticket, 0, Token(0, 299)))
    assert one.phase is DecodePhase.RUNNING
