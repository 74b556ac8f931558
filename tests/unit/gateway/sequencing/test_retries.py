"""Requests that wait are retried when room is reported: the oldest first, in slices, and each of them."""

import asyncio

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.retries import SLICE_SECONDS, Retries
from mesh.errors import Unavailable
from mesh.messages.jobs import FullKind
from tests.sim.loop import virtual
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


def waiting(made: SequencerMesh, count: int) -> list[GatewayRequest]:
    requests = [made.accept() for _ in range(count)]
    for request in requests:
        while request.phase is RequestPhase.OPEN:
            made.full(request, FullKind.NOW)
    return requests


class Passes:
    """Records what is retried; each retry takes `seconds` of the loop's clock."""

    def __init__(self, requests: list[GatewayRequest], seconds: float) -> None:
        self.tried: list[int] = []
        self._seconds, self._late = seconds, 0.0
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._loop.time = lambda: self._time() + self._late  # type: ignore[method-assign]
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self.retries = Retries(lambda: [r for r in requests if r.phase is RequestPhase.WAITING], self._retry)

    def _retry(self, request: GatewayRequest) -> None:
        self.tried.append(self._numbers[request.id])
        self._late += self._seconds

    def close(self) -> None:
        self._loop.time = self._time  # type: ignore[method-assign]


@virtual
async def test_a_burst_of_waiting_requests_is_retried_in_slices_and_each_of_them_once() -> None:
    passes = Passes(waiting(mesh(), 30), SLICE_SECONDS / 4)
    passes.retries.start()
    first = len(passes.tried)
    assert 0 < first < 10, "others have their turn before the pass goes on"
    while len(passes.tried) < 30:
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert passes.tried == list(range(30))
    passes.close()


@virtual
async def test_quick_retries_all_happen_at_once() -> None:
    passes = Passes(waiting(mesh(), 30), 0.0)
    passes.retries.start()
    assert passes.tried == list(range(30))
    passes.close()


@virtual
async def test_room_during_a_pass_starts_one_more_behind_it() -> None:
    passes = Passes(waiting(mesh(), 12), SLICE_SECONDS / 4)
    for _ in range(3):
        passes.retries.start()
    await asyncio.sleep(1)
    assert passes.tried == [*range(12), *range(12)]
    passes.close()


@virtual
async def test_a_request_that_ended_during_the_pass_is_not_retried() -> None:
    made = mesh()
    requests = waiting(made, 12)
    passes = Passes(requests, SLICE_SECONDS / 4)
    passes.retries.start()
    made.sequencer.end(requests[11], Unavailable("over"))
    await asyncio.sleep(1)
    assert passes.tried == list(range(11))
    passes.close()
