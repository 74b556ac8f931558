"""When a request learns that no worker of its numerics class is left: at once, after a while, or not at all."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.errors import ClassUnavailable, Unavailable
from mesh.messages.jobs import FullKind
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, error_of, mesh


def two_classes(**more: Any) -> tuple[SequencerMesh, GatewayRequest]:
    """A request that began in the class of d1, of which there is no second worker: d2 has another fingerprint."""
    m = mesh()
    other = m.workers["d2"]
    m.sequencer.workers.remove(other)
    other.hello = replace(other.hello, fingerprint="other")
    m.sequencer.workers.add(other)
    request = m.accept(**more)
    assert m.serving(request)[1] == "d1"
    m.token("d1", request.ticket, 0)
    return m, request


@virtual
async def test_after_an_orderly_leave_the_request_waits_for_its_class_and_then_names_both() -> None:
    m, request = two_classes()
    m.workers["d1"].drains()
    m.end_session("d1")
    await asyncio.sleep(29.0)
    assert request.phase is RequestPhase.WAITING, "an upgrade may bring it back"
    await asyncio.sleep(2.0)
    error = error_of(request)
    assert isinstance(error, ClassUnavailable), error
    assert error.details == {"wanted": "a fingerprint print", "attached": "a fingerprint other"}


@pytest.mark.parametrize("goes_on", [True, False])
@virtual
async def test_a_hung_worker_may_go_on_so_its_requests_wait_for_it(goes_on: bool) -> None:
    m, request = two_classes()
    m.workers["d1"].hangs(True)
    m.sequencer.deaths.hung(m.workers["d1"])
    await asyncio.sleep(20.0)
    assert request.phase is RequestPhase.WAITING
    if goes_on:
        m.workers["d1"].hangs(False)
        m.room("d1")
        assert m.serving(request)[1] == "d1"
    else:
        await asyncio.sleep(11.0)
        assert isinstance(error_of(request), ClassUnavailable)


@virtual
async def test_a_worker_that_died_is_not_waited_for() -> None:
    """Negative control."""
    m, request = two_classes()
    m.end_session("d1")
    assert isinstance(error_of(request), ClassUnavailable)


@virtual
async def test_a_request_that_may_change_its_class_waits_for_room_in_the_other() -> None:
    m, request = two_classes(allow_class_change=True)
    for name in ("p1", "p2"):
        worker = m.workers[name]
        m.sequencer.workers.remove(worker)
        worker.hello = replace(worker.hello, fingerprint="other")
        m.sequencer.workers.add(worker)
    m.end_session("d1")
    m.full(request, FullKind.NOW)
    assert request.phase is RequestPhase.WAITING
    await asyncio.sleep(31.0)
    error = error_of(request)
    assert isinstance(error, Unavailable) and "no worker had room" in error.message
