"""The sequencer blames a worker's end on the requests that the worker computed, and on no others."""

import asyncio
from typing import Any

import pytest

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.messages.jobs import Reason
from mesh.messages.reports import Lost
from mesh.rules import RULES
from tests.sim.loop import VirtualLoop, virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def computed_by(m: SequencerMesh, tier: str) -> tuple[GatewayRequest, str]:
    """A request that one of its workers computes, and that worker."""
    request = m.accept()
    prefill, decode = m.serving(request)
    name = prefill if tier == "prefill" else decode
    request.begun = m.workers[name].incarnation
    return request, name


@pytest.mark.parametrize("tier", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("how", "counts"), [("died", True), ("lease", False), ("drained", False), ("closed here", False)]
)
@virtual
async def test_only_the_end_of_a_process_counts(how: str, counts: bool, tier: str) -> None:
    m = mesh()
    request, name = computed_by(m, tier)
    session: Any = m.workers[name].session
    session.ended_there = how not in ("lease", "closed here")
    if how == "drained":
        m.workers[name].drains()
    m.end_session(name)
    assert (len(request.deaths) == 1) is counts
    assert request.phase is RequestPhase.OPEN, "it goes on in any case"


@virtual
async def test_a_request_that_waits_in_the_queue_of_a_worker_is_no_cause_of_its_death() -> None:
    m = mesh()
    waits, computed = m.accept(), m.accept()
    while m.serving(computed)[0] != m.serving(waits)[0]:
        computed = m.accept()
    name = m.serving(waits)[0]
    computed.begun = m.workers[name].incarnation
    m.end_session(name)
    assert len(computed.deaths) == 1 and not waits.deaths


def landing_lost(m: SequencerMesh, request: GatewayRequest) -> None:
    """Decode notices the end of the request's prefill worker."""
    assert request.ticket is not None
    m.sequencer.on_lost(m.workers[m.serving(request)[1]], Lost(request.ticket, Reason.LANDING_LOST))


@pytest.mark.parametrize("then", ["at once", "later", "heard"])
@virtual
async def test_a_worker_whose_end_decode_notices_first_died_of_what_it_computed_and_not_of_what_waits(
    then: str,
) -> None:
    """`then`: when its session ends, behind the report of decode; "heard": it sends something in between."""
    m = mesh()
    waits, computed = m.accept(), m.accept()
    while m.serving(computed)[0] != m.serving(waits)[0]:
        computed = m.accept()
    name = m.serving(waits)[0]
    computed.begun = m.workers[name].incarnation
    landing_lost(m, computed)
    assert m.serving(computed)[0] != name
    await asyncio.sleep({"at once": 0.0, "later": RULES.together_seconds + 0.1, "heard": 0.1}[then])
    if then == "heard":
        m.workers[name].session.heard_seconds = asyncio.get_running_loop().time()
    m.end_session(name)
    assert (len(computed.deaths), len(waits.deaths)) == ((1, 0) if then == "at once" else (0, 1))


@pytest.mark.parametrize("stopped", [True, False])
@virtual
async def test_a_gateway_that_was_stopped_blames_no_request_for_what_it_notices_then(stopped: bool) -> None:
    m = mesh()
    m.sequencer.settling.start()
    request, _ = computed_by(m, "prefill")
    await asyncio.sleep(5.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    if stopped:
        loop.stand_still(3.0)
    m.end_session(m.serving(request)[0])
    m.end_session(m.serving(request)[0])  # the request was sent there in this very moment
    assert len(request.deaths) == (0 if stopped else 2)
    await asyncio.sleep(0.0)


@virtual
async def test_one_death_costs_no_time_and_two_at_once_cost_a_moment() -> None:
    m = mesh()
    request, name = computed_by(m, "decode")
    m.end_session(name)
    assert request.phase is RequestPhase.OPEN
    prefill, _ = m.serving(request)
    request.begun = m.workers[prefill].incarnation
    m.end_session(prefill)
    assert request.phase is RequestPhase.WAITING and not request.ended
    await asyncio.sleep(RULES.together_seconds + 0.01)
    assert request.phase is RequestPhase.OPEN


@pytest.mark.parametrize("together", [True, False])
@virtual
async def test_deaths_beside_those_of_other_workers_count_as_no_fault_of_the_request(together: bool) -> None:
    m = mesh()
    request, name = computed_by(m, "decode")
    request.deaths = []
    m.end_session(name)
    other = next(each for each in m.workers if each not in (name, *m.serving(request)))
    await asyncio.sleep(0.0 if together else RULES.together_seconds + 0.5)
    m.end_session(other)
    (death,) = request.deaths
    assert m.sequencer.deaths._counts(death, request.deaths) is not together


@virtual
async def test_a_request_ends_after_many_deaths_that_count_as_no_fault_of_it() -> None:
    m = mesh()
    request, name = computed_by(m, "decode")
    m.end_session(name)
    (death,) = request.deaths
    request.deaths = [death] * (RULES.deaths_in_all - 1)
    await asyncio.sleep(5.0)
    prefill, _ = m.serving(request)
    request.begun = m.workers[prefill].incarnation
    m.end_session(prefill)
    await asyncio.sleep(RULES.judged_seconds + 0.01)
    assert request.phase is RequestPhase.ERROR
