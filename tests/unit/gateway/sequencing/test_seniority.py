"""Waiting requests are retried in the order of their seniority: a step of priority is worth a second of waiting."""

import asyncio

import pytest

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.messages.jobs import FullKind, Job
from mesh.messages.orders import Open
from mesh.rules import RULES
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def opened(m: SequencerMesh, name: str) -> list[Job]:
    return [message.job for message in m.sent(name) if isinstance(message, Open)]


def make_wait(m: SequencerMesh, request: GatewayRequest) -> None:
    for _ in range(2):
        m.full(request, FullKind.NOW)
    assert request.phase is RequestPhase.WAITING


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ((0, 0, 0), [0, 1, 2]),
        ((0, -1, 0), [0, 1, 2]),  # they came two seconds apart: one step is too little
        ((0, -3, 0), [1, 0, 2]),
        ((600, 0, -600), [2, 1, 0]),
        ((5, 0, 0), [1, 2, 0]),
    ],
)
@virtual
async def test_waiting_requests_are_retried_in_seniority(priorities: tuple[int, ...], order: list[int]) -> None:
    assert RULES.priority_seconds == 1.0
    m, requests = mesh(), list[GatewayRequest]()
    for priority in priorities:
        requests.append(m.accept(priority=priority))
        make_wait(m, requests[-1])
        await asyncio.sleep(2.0)
    m.sent("d1")
    m.room("d1")
    jobs = opened(m, "d1")
    assert [job.ticket.request for job in jobs] == [requests[place].id for place in order]
    assert [job.priority for job in jobs] == [priorities[place] for place in order]


@virtual
async def test_requests_of_a_lost_worker_are_moved_in_seniority() -> None:
    m = mesh()
    young, old = m.accept(), m.accept(priority=-5)
    lost = m.serving(old)[1]
    if m.serving(young)[1] != lost:
        m.full(young, FullKind.NOW)
    assert m.serving(young)[1] == lost
    left = "d1" if lost == "d2" else "d2"
    young.refused.clear()
    m.sent(left)
    m.end_session(lost)
    assert [job.ticket.request for job in opened(m, left)] == [old.id, young.id]


@virtual
async def test_the_deadline_of_a_job_shrinks_with_every_attempt() -> None:
    m = mesh()
    request = m.accept(deadline_seconds=10.0)
    (first,) = opened(m, m.serving(request)[1])
    await asyncio.sleep(3.0)
    m.full(request, FullKind.NOW)
    (second,) = opened(m, m.serving(request)[1])
    assert first.deadline_seconds == 10.0 and second.deadline_seconds == pytest.approx(7.0)
    await asyncio.sleep(7.1)
    assert request.phase is RequestPhase.ERROR
