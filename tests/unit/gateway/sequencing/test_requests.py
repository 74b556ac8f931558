"""A request at the gateway: its legal moves, its guards, and the job of each attempt."""

from itertools import product

import pytest

from gateway.core.interface import ChoiceRequest
from gateway.fairness.loop_turns import Turns
from gateway.sequencing.attempts import OpenAttempts
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.unread import UnreadTokens
from mesh.messages.jobs import Sampling, Ticket

EXPECTED = {
    ("waiting", "open"),
    ("waiting", "cancelled"),
    ("waiting", "error"),
    ("open", "open"),
    ("open", "waiting"),
    ("open", "done"),
    ("open", "cancelled"),
    ("open", "error"),
    ("open", "paused"),
    ("paused", "open"),
    ("paused", "waiting"),
    ("paused", "cancelled"),
    ("paused", "error"),
}


def request(*, deadline_seconds: float | None = None, priority: int = 0) -> GatewayRequest:
    sampling = Sampling(max_tokens=9)
    choice = ChoiceRequest("r", "m", (1, 2), (7,), sampling, deadline_seconds, priority=priority)
    return GatewayRequest(
        choice, 5, 100.0, choice.trace.choice(100.0, choice.prompt, choice.sampling), UnreadTokens(1 << 20, Turns())
    )


@pytest.mark.parametrize(("before", "after"), list(product(RequestPhase, RequestPhase)))
def test_only_the_moves_of_the_protocol_are_legal(before: RequestPhase, after: RequestPhase) -> None:
    one = request()
    one.phase = before
    if (before.value, after.value) in EXPECTED:
        one.enter(after)
        assert one.phase is after
    else:
        with pytest.raises(ValueError, match=f"request 5: no move from {before.value} to {after.value}"):
            one.enter(after)


def test_a_request_has_ended_when_no_move_is_left() -> None:
    ended = []
    for phase in RequestPhase:
        one = request()
        one.phase = phase
        if one.ended:
            ended.append(phase.value)
    assert ended == ["done", "cancelled", "error"]


@pytest.mark.parametrize("other", [Ticket(5, 1, bytes(16)), Ticket(5, 3, b"n" * 16), Ticket(6, 2, b"n" * 16)])
def test_only_the_current_ticket_counts(other: Ticket) -> None:
    attempts, one = OpenAttempts(), request()
    one.ticket, one.phase = Ticket(5, 2, b"n" * 16), RequestPhase.OPEN
    attempts.begin(one)
    assert attempts.current(Ticket(5, 2, b"n" * 16).pack()) is one and attempts.current(other.pack()) is None


def test_a_ticket_counts_until_its_attempt_is_over() -> None:
    attempts, one = OpenAttempts(), request()
    one.ticket = first = Ticket(5, 1, b"n" * 16)
    attempts.begin(one)
    assert attempts.current(first.pack()) is None, "the request waits"
    one.phase = RequestPhase.OPEN
    attempts.end(one)
    one.ticket = Ticket(5, 2, b"n" * 16)
    attempts.begin(one)
    assert attempts.current(first.pack()) is None and attempts.current(one.ticket.pack()) is one


def test_the_next_position_follows_what_the_client_brought_and_was_shown() -> None:
    one = request()
    assert [position for position in range(4) if one.is_next(position)] == [1]
    one.show(3)
    assert [position for position in range(4) if one.is_next(position)] == [2]
    assert one.emitted == (7, 3)


def test_every_attempt_raises_the_number_under_the_same_id() -> None:
    one = request()
    one.ticket = one.next_ticket(b"a" * 16)
    assert one.ticket == Ticket(5, 1, b"a" * 16)
    assert one.next_ticket(b"b" * 16) == Ticket(5, 2, b"b" * 16)


def test_a_job_has_the_time_that_is_left_and_the_priority() -> None:
    one = request(deadline_seconds=4.0, priority=-3)
    one.ticket = one.next_ticket(bytes(16))
    jobs = [one.job(now) for now in (100.0, 103.0, 105.0)]
    assert [job.deadline_seconds for job in jobs] == [4.0, 1.0, 0.0]
    assert jobs[0].priority == -3 and jobs[0].emitted == (7,)
    without = request()
    without.ticket = one.ticket
    assert without.job(103.0).deadline_seconds is None


def test_a_step_of_priority_is_worth_seconds_of_waiting() -> None:
    assert request(priority=3).seniority(1.0) == (103.0, 5)
    assert request(priority=-3).seniority(0.5) == (98.5, 5)
