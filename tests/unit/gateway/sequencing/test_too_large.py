"""When a request learns that it is too large: workers that can never serve it do not keep it waiting."""

import asyncio
from dataclasses import replace

import pytest

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.errors import BatonError, PoolTooSmall, Unavailable
from mesh.messages.jobs import FullKind, Reason
from mesh.messages.reports import Lost
from tests.sim.loop import run_virtual, virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, error_of, mesh


def another_class(m: SequencerMesh, *names: str) -> None:
    for name in names:
        worker = m.workers[name]
        m.sequencer.workers.remove(worker)
        worker.hello = replace(worker.hello, numerics="b")
        m.sequencer.workers.add(worker)


def too_large_for_prefill(m: SequencerMesh, request: GatewayRequest) -> None:
    prefill, _ = m.serving(request)
    assert request.ticket is not None
    m.sequencer.on_lost(m.workers[prefill], Lost(request.ticket, Reason.TOO_LARGE))


@pytest.mark.parametrize("other", [True, False])
@virtual
async def test_an_answer_that_outgrew_the_prefill_pools_of_its_class_ends_at_once(other: bool) -> None:
    """`other`: the second pair of workers is of another class; else it is asked too."""
    m = mesh()
    if other:
        another_class(m, "p2", "d2")
    request = m.accept()
    _, decode = m.serving(request)
    assert decode == "d1"
    m.token(decode, request.ticket, 0)
    too_large_for_prefill(m, request)
    if not other:
        assert request.phase is RequestPhase.OPEN, "negative control: the second prefill worker may hold it"
        too_large_for_prefill(m, request)
    error = error_of(request)
    assert isinstance(error, PoolTooSmall) and "answer so far have 11 tokens" in error.message
    assert error.field == "max_tokens"


@pytest.mark.parametrize("partner", [True, False])
def test_a_decode_worker_without_a_partner_may_get_one_but_not_for_ever(partner: bool) -> None:
    async def main() -> BatonError:
        m = mesh()
        another_class(m, "p2", "d2")
        absent = m.workers["p2"]
        m.sequencer.workers.remove(absent)
        request = m.accept()
        assert m.serving(request)[1] == "d1"
        m.full(request, FullKind.EVER)
        await asyncio.sleep(20.0)
        assert request.phase is RequestPhase.WAITING, "a prefill worker for d2 may come, and its pool may be larger"
        if partner:
            m.sequencer.workers.add(absent)
            m.sequencer.on_room(absent)
            assert m.serving(request) == ("p2", "d2")
            m.full(request, FullKind.NOW)
            await asyncio.sleep(31.0)
        else:
            await asyncio.sleep(11.0)
        return error_of(request)

    assert type(run_virtual(main())) is (Unavailable if partner else PoolTooSmall)
