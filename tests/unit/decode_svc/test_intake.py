"""How requests come from gateways, what a later attempt takes over, and who is sent away."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from decode_svc.emission import Emission
from decode_svc.intake import Intake
from decode_svc.request.requests import DecodePhase
from engine.examining.examinations import Examinations
from mesh.messages.jobs import FullKind, Job, Token
from mesh.messages.orders import Cancel, Open
from mesh.messages.reports import Full, Tokens
from mesh.sessions.legs import Outbox
from mesh.timing.loop_monitor import LoopMonitor
from tests.sim.loop import virtual
from tests.unit.decode_svc.fakes import PAGE, WRITER, FakeSession, Surroundings, job


class FakeQuarantine:
    stuck_pages = 0


class Door:
    """An intake with one gateway."""

    def __init__(self, **more: Any) -> None:
        self.around = around = Surroundings(**more)
        self.gateway: Any = FakeSession()
        self.quarantine: Any = FakeQuarantine()
        outbox = Outbox(LoopMonitor())
        examinations = Examinations(
            around.pages,
            page_tokens=PAGE,
            numerics="class a",
            priority_seconds=around.rules.priority_seconds,
            outbox=outbox,
            wake=around.host.wake,
        )
        self.intake = Intake(
            around.requests,
            around.pages,
            around.room,
            self.quarantine,
            Emission(),
            outbox,
            examinations,
            host=around.host,
            rules=around.rules,
        )

    def open(self, mine: Job, prefill: int | None = WRITER, age_ms: int = 0) -> None:
        self.intake.on_message(self.gateway, Open(mine, prefill, age_ms))


async def test_open_with_a_prefill_worker_waits_for_its_ready_and_without_one_for_room() -> None:
    door = Door()
    door.open(job(1))
    door.open(job(2), None)
    assert [r.phase for r in door.around.requests.values()] == [DecodePhase.OPEN, DecodePhase.LOCAL]
    door.intake.admit_local()
    one, local = door.around.requests.values()
    assert (one.phase, local.phase) == (DecodePhase.OPEN, DecodePhase.RUNNING)
    assert door.around.host.running == [local] and len(local.pages) == 2 and local.filled == 0


async def test_what_can_never_fit_is_refused_at_once() -> None:
    door = Door(pages=4)
    door.open(job(1, tokens=PAGE, max_tokens=3 * PAGE))
    door.open(job(2, tokens=PAGE, max_tokens=3 * PAGE + 1))
    assert list(door.around.requests) == [1]
    assert door.gateway.sent == [Full(job(2).ticket, FullKind.EVER)]


async def test_an_open_of_the_same_attempt_is_ignored_and_a_higher_one_starts_again_at_its_old_place() -> None:
    door = Door()
    door.open(job(1), age_ms=9000)
    old = door.around.requests[1]
    old.passed = 3
    door.open(job(1))
    assert door.around.requests[1] is old
    door.open(job(1, attempt=2), age_ms=10)
    new = door.around.requests[1]
    assert new is not old and door.around.host.dropped == [old]
    assert (new.opened_seconds, new.passed, new.ticket.attempt) == (old.opened_seconds, 3, 2)


async def test_a_running_request_goes_on_under_the_new_attempt_and_emits_again_from_its_base() -> None:
    door = Door()
    door.open(job(1), None)
    door.intake.admit_local()
    one = door.around.requests[1]
    for position, token in enumerate((50, 51, 52)):
        one.tokens.append(token)
        one.produced[position] = Token(position, token)
    again = replace(job(1, attempt=2), emitted=(50,))
    door.open(again)
    assert door.around.requests[1] is one and one.job is again and one.phase is DecodePhase.RUNNING
    (message,) = door.gateway.sent
    assert isinstance(message, Tokens)
    assert [(item.ticket.attempt, item.token.position) for item in message.items] == [(2, 1), (2, 2)]


async def test_a_running_request_whose_text_differs_starts_again() -> None:
    door = Door()
    door.open(job(1), None)
    door.intake.admit_local()
    old = door.around.requests[1]
    old.tokens.append(50)
    door.open(replace(job(1, attempt=2), emitted=(60,)))
    assert door.around.host.dropped == [old] and door.around.requests[1].tokens[-1] == 60


async def test_cancel_reaches_its_attempt_and_lower_ones_only(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    caplog.set_level("DEBUG", "baton.decode")
    door.open(job(1, attempt=2))
    one = door.around.requests[1]
    door.intake.on_message(door.gateway, Cancel(1, 1))
    assert 1 in door.around.requests and not caplog.records
    door.intake.on_message(door.gateway, Cancel(1, 2))
    assert door.around.host.dropped == [one]
    (record,) = caplog.records
    facts = {name: getattr(record, name) for name in ("event", "request", "phase")}
    assert facts == {"event": "request_cancelled", "request": 1, "phase": "open"}


async def test_requests_go_with_their_gateway() -> None:
    door = Door()
    door.open(job(1))
    door.intake.on_message(FakeSession(), Open(job(2), WRITER))  # type: ignore[arg-type]
    door.intake.gateway_ended(door.gateway)
    assert list(door.around.requests) == [2]


async def test_priority_is_worth_seconds_of_waiting() -> None:
    door = Door()
    door.open(job(1, priority=5))
    door.open(job(2), age_ms=4000)
    door.open(job(3), age_ms=-9000)  # nine seconds later
    oldest_first = sorted(door.around.requests.values(), key=lambda r: r.seniority)
    assert [r.key for r in oldest_first] == [2, 1, 3]
    assert door.around.requests[1].opened_seconds < door.around.requests[1].senior_seconds


async def test_local_prompts_get_room_in_the_order_of_seniority() -> None:
    door = Door(max_batch=1)
    for key, priority in ((1, 0), (2, -1), (3, 1)):
        door.open(job(key, priority=priority), None)
    door.intake.admit_local()
    assert [r.key for r in door.around.host.running] == [2]
    assert [r.passed for r in door.around.requests.values() if r.phase is DecodePhase.LOCAL] == [0, 0]


async def test_beside_stuck_pages_a_request_that_does_not_fit_is_sent_on() -> None:
    door = Door(pages=8)
    door.open(job(1, max_tokens=16))  # six pages
    door.open(job(2, max_tokens=4))  # three
    door.intake.refuse_hopeless()
    assert len(door.around.requests) == 2
    door.quarantine.stuck_pages = 4
    door.intake.refuse_hopeless()
    assert list(door.around.requests) == [2] and door.gateway.sent == [Full(job(1).ticket, FullKind.NOW)]


@virtual
async def test_a_request_is_dropped_when_its_deadline_passes() -> None:
    door = Door()
    door.open(job(1, deadline_seconds=2.0))
    door.open(job(2))
    await asyncio.sleep(1.9)
    assert list(door.around.requests) == [1, 2]
    await asyncio.sleep(0.2)
    assert list(door.around.requests) == [2]
    await asyncio.sleep(100)
    assert list(door.around.requests) == [2] and door.gateway.sent == [], "the gateway has a timer of its own"


@virtual
async def test_a_later_attempt_of_a_running_request_brings_its_own_deadline() -> None:
    door = Door()
    door.open(job(1, deadline_seconds=2.0), None)
    door.intake.admit_local()
    await asyncio.sleep(1.0)
    door.open(job(1, attempt=2, deadline_seconds=5.0), None)
    await asyncio.sleep(4.9)
    assert list(door.around.requests) == [1]
    await asyncio.sleep(0.2)
    assert not door.around.requests


@pytest.mark.parametrize(
    "again",
    [
        replace(job(1, attempt=2), prompt=job(1).prompt, emitted=()),  # wants a token that came before this worker
        replace(job(1, attempt=2), prompt=(*job(1).prompt, 50), emitted=(51,)),  # an answer became prompt
    ],
)
async def test_a_running_request_starts_again_where_it_lacks_the_tokens_that_the_gateway_wants(again: Job) -> None:
    """Otherwise Open fails here, and with it the session of that gateway, which all its requests share."""
    door = Door()
    door.open(replace(job(1), emitted=(50,)), None)
    door.intake.admit_local()
    old = door.around.requests[1]
    old.tokens.append(51)
    old.produced[1] = Token(1, 51)
    door.open(again)
    assert door.around.host.dropped == [old] and door.around.requests[1].job is again
