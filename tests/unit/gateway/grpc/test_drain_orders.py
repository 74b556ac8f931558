"""An operator's order to drain one worker, over gRPC: which worker it names, and when its answers are handed over."""

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from baton.admin.v1 import admin_pb2 as pb
from baton.admin.v1 import admin_pb2_grpc as pb_grpc
from gateway.grpc.admin import admin
from mesh.messages.message import Drain
from tests.unit.gateway.fake_mesh import SequencerMesh, mesh


@pytest.fixture
def served() -> SequencerMesh:
    return mesh()


@pytest.fixture
async def stub(served: SequencerMesh) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    gateway: Any = SimpleNamespace(workers=served.workers.values())
    admin(gateway, Random(1))(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield pb_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
    await server.stop(None)


@pytest.mark.parametrize(
    ("given", "order"),
    [({}, Drain()), ({"hand_over_seconds": 0.0}, Drain(0)), ({"hand_over_seconds": 2.5}, Drain(2500))],
)
async def test_an_order_reaches_its_worker_with_the_time_that_is_left(
    stub: Any, served: SequencerMesh, given: Any, order: Drain
) -> None:
    before = (await stub.Drain(pb.DrainRequest(worker="d1", **given))).worker
    assert before.address == "d1" and not before.draining
    assert served.sent("d1") == [order] and served.sent("d2") == []


@pytest.mark.parametrize("seconds", [-0.1, 86_401.0, float("inf"), float("nan")])
async def test_a_time_that_nobody_can_mean_is_refused_and_nothing_drains(
    stub: Any, served: SequencerMesh, seconds: float
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="hand_over_seconds must be from 0 to") as refused:
        await stub.Drain(pb.DrainRequest(worker="d1", hand_over_seconds=seconds))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.sent("d1") == []


async def test_a_worker_that_drains_already_is_ordered_again_only_for_a_hand_over(
    stub: Any, served: SequencerMesh
) -> None:
    served.workers["d1"].draining = True
    await stub.Drain(pb.DrainRequest(worker="d1"))
    assert served.sent("d1") == []
    await stub.Drain(pb.DrainRequest(worker="d1", hand_over_seconds=1.0))
    assert served.sent("d1") == [Drain(1000)]
