"""A request that a decode worker refused is offered to it again when the worker has more room than it had since."""

from random import Random
from typing import Any, cast

from gateway.attaching.service import Gateway
from gateway.routing.router import Local
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.messages.jobs import FullKind
from mesh.messages.reports import Full, Load
from mesh.network.memory_network import MemoryNetwork
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def refused() -> tuple[Gateway, SequencerMesh, GatewayRequest]:
    """A request that d1, the only decode worker, has refused for now, with 10 free pages."""
    gateway, made = Gateway(MemoryNetwork(Random(1)), random=Random(1), model="m", local=Local.NEVER), mesh()
    for name in ("p1", "d1"):
        gateway.workers.add(made.workers[name])
    m = SequencerMesh(gateway.sequencer, made.workers)
    reports(gateway, m, 10)
    request = m.accept()
    assert request.ticket is not None
    gateway.attaching.on_report(m.workers["d1"], cast(Any, Full(request.ticket, FullKind.NOW)))
    assert request.phase is RequestPhase.WAITING
    return gateway, m, request


def reports(gateway: Gateway, m: SequencerMesh, free_pages: int) -> None:
    gateway.attaching.on_report(m.workers["d1"], Load(free_pages=free_pages, total_pages=64))


@virtual
async def test_a_worker_that_was_full_and_has_as_many_pages_as_before_is_asked_again() -> None:
    gateway, m, request = refused()
    reports(gateway, m, 0)
    assert request.phase is RequestPhase.WAITING
    reports(gateway, m, 10)
    assert request.phase is RequestPhase.OPEN and m.serving(request)[1] == "d1"


@virtual
async def test_the_echo_of_the_refusal_is_no_room() -> None:
    """Negative control."""
    gateway, m, request = refused()
    reports(gateway, m, 10)
    assert request.phase is RequestPhase.WAITING
