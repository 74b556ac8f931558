"""Decode's view of a request: its legal moves, its seniority, its ticket, and when a landing is complete."""

from dataclasses import replace

import pytest

from decode_svc.request.requests import DecodePhase, OpenLanding, PageOwner, same_ticket
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Commit, Quiet
from tests.unit.decode_svc.fakes import request

TICKET = Ticket(1, 1, bytes(16))

LEGAL = {
    ("open", "landing"),
    ("open", "ended"),
    ("landing", "open"),
    ("landing", "running"),
    ("landing", "lost"),
    ("landing", "ended"),
    ("local", "running"),
    ("local", "ended"),
    ("running", "ended"),
    ("lost", "ended"),
}


@pytest.mark.parametrize("phase", list(DecodePhase))
@pytest.mark.parametrize("target", list(DecodePhase))
def test_only_legal_moves_are_made(phase: DecodePhase, target: DecodePhase) -> None:
    one = request(1, phase=phase)
    assert one.phase is phase
    if (phase.value, target.value) in LEGAL:
        one.enter(target)
        assert one.phase is target
    else:
        with pytest.raises(ValueError, match=f"request 1: no move from {phase.value} to {target.value}"):
            one.enter(target)
        assert one.phase is phase


def test_one_of_two_requests_is_always_older() -> None:
    one, other = request(1, opened=3.0), request(2, opened=3.0)
    assert one.seniority < other.seniority


def test_tickets_are_equal_only_with_the_same_random_bits() -> None:
    assert same_ticket(TICKET, Ticket(1, 1, bytes(16)))
    assert not same_ticket(TICKET, replace(TICKET, nonce=bytes([1]) * 16))


def test_a_commit_counts_for_its_round_and_a_quiet_for_its_process() -> None:
    owner = PageOwner(TICKET, writer=7, transport="shm", round=2)
    assert [owner.committed_by(Commit(TICKET, round, None)) for round in (1, 2, 3)] == [False, True, False]
    assert [owner.quieted_by(Quiet(TICKET, incarnation)) for incarnation in (6, 7)] == [False, True]
    other = replace(TICKET, attempt=2)
    assert not owner.committed_by(Commit(other, 2, None)) and not owner.quieted_by(Quiet(other, 7))


def test_a_landing_is_complete_when_every_layer_of_every_page_is_valid() -> None:
    landing = OpenLanding(TICKET, 7, "shm", 2, (5, 6, 7), 0.0, 0.0, [0b11, 0b01, 0b11], 0b11)
    assert not landing.complete and landing.sound_pages == 1 and landing.landed == (5, 6)
    landing.valid[1] = 0b11
    assert landing.complete and landing.sound_pages == 3
