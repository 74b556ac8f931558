"""A worker that leaves hands over what it cannot end, and nobody gets more than it has room for."""

import asyncio
from dataclasses import replace

from gateway.attaching.handing_over import HandingOver, seconds_left
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.worker_figures import GUESSED_TOKENS_PER_SECOND
from mesh.messages.message import Drain
from mesh.messages.reports import Load
from mesh.rules import RULES
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def on_d1(count: int, prompt: int) -> tuple[SequencerMesh, list[GatewayRequest]]:
    """Long requests on d1."""
    m = mesh()
    m.workers["d2"].hangs(True)
    requests = [m.accept(prompt=prompt, max_tokens=10_000) for _ in range(count)]
    m.workers["d2"].hangs(False)
    assert {m.serving(each)[1] for each in requests} == {"d1"}
    return m, requests


@virtual
async def test_the_other_worker_gets_as_many_requests_as_it_has_room_for() -> None:
    m, requests = on_d1(3, prompt=100)  # d2 has room for 256 tokens

    def moved() -> int:
        return sum(m.serving(each)[1] == "d2" for each in requests)

    handing = HandingOver(m.sequencer.workers, m.sequencer, RULES)
    m.workers["d1"].drains()
    handing.on_drain(m.workers["d1"], Drain(60_000))
    assert moved() == 2
    await asyncio.sleep(3 * RULES.heartbeat_seconds)
    assert moved() == 2, "it has reported nothing since"
    m.workers["d2"].report(Load(free_pages=64, total_pages=128))
    await asyncio.sleep(2 * RULES.heartbeat_seconds)
    assert moved() == 3
    handing.stop()


@virtual
async def test_shortly_before_the_end_everything_goes() -> None:
    """Negative control."""
    m, requests = on_d1(3, prompt=100)
    handing = HandingOver(m.sequencer.workers, m.sequencer, RULES)
    m.workers["d1"].drains()
    handing.on_drain(m.workers["d1"], Drain(20_000))
    await asyncio.sleep(15.1)
    assert {m.serving(each)[1] for each in requests} == {"d2"}
    handing.stop()


@virtual
async def test_a_prefill_worker_that_has_not_measured_itself_has_the_guessed_speed() -> None:
    m = mesh()
    request = m.accept()
    worker = m.workers[m.serving(request)[0]]
    worker.report(Load(queued_tokens=1000))
    assert seconds_left(request, worker) == 1000 / GUESSED_TOKENS_PER_SECOND
    worker.report(replace(worker.load, tokens_per_second=100.0))
    assert seconds_left(request, worker) == 10.0
    request.begun = worker.incarnation
    assert seconds_left(request, worker) == 0.0
