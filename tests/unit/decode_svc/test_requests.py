"""Decode's view of a request: legal moves, who may land, who is preempted."""

from typing import Any, cast

import pytest

from decode_svc.handoff.room import growth, may_land, victim
from decode_svc.requests import MOVES, DecodePhase, DecodeRequest, OpenLanding
from mesh.messages import Job, Sampling, Ticket

PAGE = 4


def request(
    key: int, *, opened: float = 0.0, tokens: int = 8, phase: DecodePhase = DecodePhase.OPEN, **more: Any
) -> DecodeRequest:
    job = Job(Ticket(key, 1, bytes(16)), tuple(range(tokens)), (), Sampling())
    return DecodeRequest(job, cast(Any, None), phase, opened, list(job.tokens), **more)


def lands(
    one: DecodeRequest, everyone: list[DecodeRequest], *, lacking: int = 2, available: int = 100, **more: int
) -> bool:
    limits = {"page_tokens": PAGE, "max_batch": 64, "overtakes": 8, **more}
    return may_land(one, everyone, lacking=lacking, available=available, **limits)


@pytest.mark.parametrize("phase", list(DecodePhase))
@pytest.mark.parametrize("target", list(DecodePhase))
def test_only_moves_of_the_table_are_made(phase: DecodePhase, target: DecodePhase) -> None:
    one = request(1, phase=phase)
    if target in MOVES[phase]:
        one.enter(target)
        assert one.phase is target
    else:
        with pytest.raises(ValueError, match=f"request 1: no move from {phase.value} to {target.value}"):
            one.enter(target)


def test_all_pages_or_none_after_what_running_requests_need_next() -> None:
    full = request(1, phase=DecodePhase.RUNNING, pages=[0, 1], filled=8)  # its next token needs a page
    full.tokens.append(9)
    roomy = request(2, phase=DecodePhase.RUNNING, pages=[2, 3, 4], filled=8)
    roomy.tokens.append(9)
    one = request(3)
    assert growth([full, roomy, one], PAGE) == 1
    assert not lands(one, [full, roomy, one], available=2)
    assert lands(one, [full, roomy, one], available=3)


def test_a_refusal_is_remembered_and_a_landing_is_not_a_refusal() -> None:
    one, other = request(1), request(2)
    assert lands(one, [one, other]) and one.passed is None
    assert not lands(other, [one, other], available=1) and other.passed == 0


def test_passing_is_counted_for_older_ones_that_wait_only() -> None:
    waits, never_asked = request(1, opened=1.0, passed=0), request(2, opened=1.0)
    younger_waits, one = request(3, opened=9.0, passed=0), request(4, opened=5.0)
    everyone = [waits, never_asked, younger_waits, one]
    assert lands(one, everyone)
    assert (waits.passed, never_asked.passed, younger_waits.passed) == (1, None, 0)


@pytest.mark.parametrize("phase", [DecodePhase.OPEN, DecodePhase.LOCAL])
def test_after_eight_nobody_younger_passes_until_it_landed_or_left(phase: DecodePhase) -> None:
    old, young = request(1, opened=1.0, passed=8, phase=phase), request(2, opened=2.0)
    older = request(3, opened=0.5)
    assert not lands(young, [old, young, older])
    assert lands(older, [old, young, older]), "an older one may"
    old.phase = DecodePhase.LANDING
    assert lands(young, [old, young, older])


def test_a_full_batch_takes_nobody_and_counts_as_a_refusal() -> None:
    running = [request(n, phase=DecodePhase.RUNNING, pages=[n, n], filled=4) for n in range(2)]
    one = request(9)
    assert not lands(one, [*running, one], max_batch=2) and one.passed == 0
    assert lands(one, [*running, one], max_batch=3)


def test_the_youngest_running_one_that_is_younger_is_preempted() -> None:
    old, middle, young = (request(n, opened=float(n), phase=DecodePhase.RUNNING) for n in (1, 2, 3))
    landing = request(4, opened=4.0, phase=DecodePhase.LANDING)
    everyone = [old, young, landing, middle]
    assert victim(old, everyone) is young and victim(middle, everyone) is young
    assert victim(young, everyone) is None


def test_of_two_requests_one_is_always_older() -> None:
    one, other = request(1, opened=3.0, phase=DecodePhase.RUNNING), request(2, opened=3.0, phase=DecodePhase.RUNNING)
    assert victim(one, [one, other]) is other and victim(other, [one, other]) is None


def test_a_landing_is_complete_when_every_layer_of_every_page_is_valid() -> None:
    landing = OpenLanding(Ticket(1, 1, bytes(16)), 7, "shm", 2, (5, 6, 7), 0.0, 0.0, [0b11, 0b01, 0b11], 0b11)
    assert not landing.complete and landing.sound_pages == 1 and landing.landed == (5, 6)
    landing.valid[1] = 0b11
    assert landing.complete and landing.sound_pages == 3
