"""What the gateway refuses at once: more choices than may wait, and requests after a long time without a worker."""

import asyncio
from random import Random

import pytest

from gateway.attaching.attaching import WITHOUT_WORKERS_SECONDS
from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.sequencing.ended_requests import LONGEST_WAIT_SECONDS, Tally
from gateway.tracing.record import unrecorded
from mesh.errors import Unavailable
from mesh.messages.jobs import End, Sampling
from mesh.network.memory_network import MemoryNetwork
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import mesh


def gateway(max_waiting: int = 10) -> Gateway:
    network = MemoryNetwork(Random(1)).host("gateway")
    return Gateway(network, random=Random(1), model="m", max_waiting=max_waiting)


CHOICE = ChoiceRequest("r", "m", (1, 2), (), Sampling(max_tokens=5))


@virtual
async def test_choices_without_a_first_token_wait_and_leave_with_it_or_with_their_end() -> None:
    made = mesh()
    first, second = made.accept(), made.accept()
    tally = made.sequencer.tally
    assert tally.waiting == 2, "also those that a worker has in its queue"
    made.token(made.serving(first)[1], first.ticket, 0)
    made.token(made.serving(first)[1], first.ticket, 1, End.STOP)
    assert tally.waiting == 1
    made.sequencer.end(second, Unavailable("over"))
    assert tally.waiting == 0


@virtual
async def test_at_most_so_many_choices_wait_for_their_first_token() -> None:
    core = gateway(max_waiting=8)
    for _ in range(8):
        core.admit()
        core.submit(ChoiceRequest("r", "m", (1, 2), (), Sampling(max_tokens=5)))
    with pytest.raises(Unavailable, match=r"8 choices wait .* at most 8 \(max_waiting\)"):
        core.admit()
    assert core.load() == {"running": 0, "waiting": 8}
    for request in list(core.sequencer.requests.values()):
        core.sequencer.end(request, Unavailable("over"))
    core.admit()


@virtual
async def test_without_any_worker_for_a_while_requests_are_refused_at_once() -> None:
    core = gateway()
    listening = await core.listen("gateway:1")
    await asyncio.sleep(WITHOUT_WORKERS_SECONDS - 1)
    core.submit(CHOICE)  # a worker may come back soon: this one waits
    await asyncio.sleep(2)
    with pytest.raises(Unavailable, match="no worker has been attached for 11 s") as refused:
        core.submit(CHOICE)
    assert refused.value.retry_after_seconds == 5.0
    await core.aclose()
    await listening.close()


def test_the_wait_is_the_queue_divided_by_the_rate_of_first_tokens() -> None:
    tally = Tally()
    assert tally.wait_seconds(5.0) == 1.0, "nothing is known yet"
    for now in range(10):
        tally.accepted()
        tally.started(float(now))
    for _ in range(30):
        tally.accepted()
    assert tally.wait_seconds(10.0) == 30.0
    for _ in range(1000):
        tally.accepted()
    assert tally.wait_seconds(10.0) == LONGEST_WAIT_SECONDS


@virtual
async def test_choices_whose_turn_has_not_come_wait_and_do_not_run() -> None:
    core, trace = gateway(max_waiting=4), unrecorded()
    for index in range(40):
        core.submit(ChoiceRequest("r", "m", (1,) * 500 + (index,), (), Sampling(max_tokens=5), trace=trace))
    assert core.load() == {"running": 0, "waiting": 40}
    for request in list(core.sequencer.requests.values()):
        core.sequencer.end(request, Unavailable("over"))
