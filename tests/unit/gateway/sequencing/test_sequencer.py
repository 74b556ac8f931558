"""The sequencer alone, without real workers: which reports count, and which messages raise an attempt."""

import asyncio

import pytest

from gateway.sequencing.requests import RequestPhase
from mesh.errors import Cancelled, Internal, PoolTooSmall, WorkersDied
from mesh.messages.jobs import End, FullKind, Reason, Ticket, Tier
from mesh.messages.orders import Cancel, Open, Prefill
from mesh.messages.reports import Full, Lost
from tests.sim.loop import run_virtual, virtual
from tests.unit.gateway.fake_mesh import error_of, mesh, served


@virtual
async def test_both_workers_get_the_same_ticket() -> None:
    m, request, prefill, decode = served()
    (to_prefill,), (to_decode,) = m.sent(prefill), m.sent(decode)
    assert isinstance(to_prefill, Prefill) and isinstance(to_decode, Open)
    assert to_prefill.job.ticket == to_decode.job.ticket == request.ticket
    assert to_decode.prefill_incarnation == m.workers[prefill].incarnation
    assert to_prefill.decode_address == decode


@virtual
async def test_only_the_next_position_of_the_current_ticket_is_shown() -> None:
    m, request, prefill, decode = served()
    ticket = request.ticket
    assert ticket is not None
    for position in (1, 0, 0, 2, 1, 1):
        m.token(decode, ticket, position)
    m.token(prefill, Ticket(ticket.request, ticket.attempt, bytes(16)), 2)
    m.token(prefill, Ticket(ticket.request, ticket.attempt + 1, ticket.nonce), 2)
    m.token(prefill, Ticket(ticket.request + 1, ticket.attempt, ticket.nonce), 2)
    assert list(request.shown) == [100, 101]


@virtual
async def test_every_attempt_has_new_random_bits_and_begins_behind_what_was_shown() -> None:
    m, request, prefill, decode = served()
    first = request.ticket
    assert first is not None
    m.token(prefill, first, 0)
    m.sent(decode)
    m.sequencer.on_lost(m.workers[decode], Lost(first, Reason.LANDING_LOST))
    assert request.ticket is not None and request.ticket.attempt == 2 and request.ticket.nonce != first.nonce
    (opened,) = m.sent(decode)
    assert isinstance(opened, Open) and opened.job.emitted == (100,) and opened.job.base == 1


@virtual
async def test_two_reports_of_one_failure_raise_once() -> None:
    m, request, prefill, decode = served()
    old = request.ticket
    assert old is not None
    m.sequencer.on_lost(m.workers[decode], Lost(old, Reason.LANDING_LOST))
    m.sequencer.on_lost(m.workers[prefill], Lost(old, Reason.CANNOT_PUSH))
    m.sequencer.on_full(m.workers[decode], Full(old, FullKind.NOW))
    assert request.ticket is not None and request.ticket.attempt == 2
    assert not request.refused and not request.failed


@virtual
async def test_a_worker_that_is_left_out_gets_cancel() -> None:
    m, request, prefill, decode = served()
    m.sent(prefill)
    ticket = request.ticket
    assert ticket is not None
    m.sequencer.on_lost(m.workers[decode], Lost(ticket, Reason.NO_PROGRESS))
    assert m.serving(request)[0] != prefill and m.serving(request)[1] == decode, "decode is kept, prefill is not"
    assert m.sent(prefill) == [Cancel(request.id, 1)]


@virtual
async def test_when_decode_is_lost_prefill_is_kept_because_it_may_hold_the_pages() -> None:
    m, request, prefill, decode = served()
    m.end_session(decode)
    assert m.serving(request)[0] == prefill and m.serving(request)[1] != decode


@virtual
async def test_prefill_may_go_once_decode_has_shown_that_it_has_the_pages() -> None:
    m, request, prefill, decode = served()
    m.token(decode, request.ticket, 0)
    m.end_session(prefill)
    assert request.ticket is not None and request.ticket.attempt == 1 and not request.deaths


@virtual
async def test_a_token_of_prefill_is_no_hand_over() -> None:
    m, request, prefill, _ = served()
    m.token(prefill, request.ticket, 0)
    m.end_session(prefill)
    assert request.ticket is not None and request.ticket.attempt == 2


@virtual
async def test_the_last_token_ends_the_request_and_both_workers_forget_it() -> None:
    m, request, prefill, decode = served()
    m.sent(prefill), m.sent(decode)
    m.token(decode, request.ticket, 0, End.STOP)
    assert request.phase is RequestPhase.DONE and not m.sequencer.requests
    assert m.sent(prefill) == m.sent(decode) == [Cancel(request.id, 1)]
    m.token(decode, request.ticket, 1)
    m.sequencer.end(request, Cancelled("too late"))
    assert len(request.shown) == 1 and request.phase is RequestPhase.DONE and not m.sent(decode)


@virtual
async def test_full_ever_everywhere_is_an_error_and_full_now_is_patience() -> None:
    m = mesh()
    never, later = m.accept(prompt_field="text", max_tokens_field="stop.max_tokens"), m.accept()
    for request, kind in ((never, FullKind.EVER), (later, FullKind.NOW)):
        for _ in range(2):
            m.full(request, kind)
    error = error_of(never)
    assert never.phase is RequestPhase.ERROR and isinstance(error, PoolTooSmall)
    assert error.field == "stop.max_tokens" and "stop.max_tokens" in error.message
    assert later.phase is RequestPhase.WAITING
    m.room("d2")
    assert later.phase is RequestPhase.OPEN and m.serving(later)[1] == "d2"


@pytest.mark.parametrize(
    ("gone", "said"), [("d", "no decode worker is attached"), ("p", "no prefill worker is"), ("", "no worker had room")]
)
@virtual
async def test_a_request_that_waited_too_long_is_told_what_was_lacking(gone: str, said: str) -> None:
    m = mesh()
    request = m.accept()
    for _ in range(2):
        m.full(request, FullKind.NOW)
    for name in m.workers:
        if gone and name.startswith(gone):
            m.end_session(name)
    await asyncio.sleep(31.0)
    assert said in error_of(request).message


@virtual
async def test_room_at_a_worker_that_can_never_hold_it_changes_nothing() -> None:
    m = mesh()
    request = m.accept()
    small = m.serving(request)[1]
    m.full(request, FullKind.EVER)
    other = m.serving(request)[1]
    m.full(request, FullKind.NOW)
    m.room(small)
    assert request.phase is RequestPhase.WAITING
    m.room(other)
    assert request.phase is RequestPhase.OPEN and m.serving(request)[1] == other


FINAL = Reason.GRAMMAR, Reason.LATE, Reason.FAILED  # another attempt would fail too


def test_the_third_death_is_the_last_if_none_of_the_dead_comes_back() -> None:
    async def main(returns: bool) -> RequestPhase:
        m = mesh()
        request = m.accept()
        for _ in range(3):
            assert request.phase is RequestPhase.OPEN
            prefill, decode = m.serving(request)
            name = decode if len(m.sequencer.workers.tier(Tier.DECODE)) > 1 else prefill
            request.begun = m.workers[name].incarnation
            m.end_session(name)
            await asyncio.sleep(1.5)
        assert request.phase is RequestPhase.WAITING, "the last one may come back still"
        if returns:
            m.sequencer.deaths.returned(m.workers[name].incarnation)
        await asyncio.sleep(1.0)
        assert returns or isinstance(error_of(request), WorkersDied)
        return request.phase

    assert run_virtual(main(False)) is RequestPhase.ERROR
    assert run_virtual(main(True)) is not RequestPhase.ERROR


@virtual
async def test_a_grammar_that_cannot_be_followed_ends_the_request_with_the_workers_words() -> None:
    m, request, _, decode = served()
    assert request.ticket is not None
    m.sequencer.on_lost(m.workers[decode], Lost(request.ticket, Reason.GRAMMAR, "it is too large"))
    assert request.phase is RequestPhase.ERROR and str(error_of(request)) == "it is too large"


@virtual
async def test_a_job_that_a_worker_cannot_compute_ends_with_its_id_and_goes_to_no_second_worker() -> None:
    m, request, prefill, decode = served()
    ticket = request.ticket
    assert ticket is not None
    m.sequencer.on_lost(m.workers[decode], Lost(ticket, Reason.FAILED, "a step fails"))
    error = error_of(request)
    assert isinstance(error, Internal) and request.choice.request_id in str(error) and "a step fails" in str(error)
    assert request.phase is RequestPhase.ERROR and request.ticket == ticket, "no further attempt"
    assert m.sent(prefill)[-1] == m.sent(decode)[-1] == Cancel(request.id, 1)


@pytest.mark.parametrize("reason", [each for each in Reason if each not in FINAL])
@virtual
async def test_every_reason_of_lost_moves_the_request_on(reason: Reason) -> None:
    m, request, prefill, decode = served()
    reporter = prefill if reason in (Reason.CANNOT_PUSH, Reason.TOO_LARGE) else decode
    assert request.ticket is not None
    m.sequencer.on_lost(m.workers[reporter], Lost(request.ticket, reason))
    assert request.phase is RequestPhase.OPEN and request.ticket.attempt == 2
    assert (m.serving(request)[0] == prefill) == (reason is Reason.PREEMPTED)
