"""Orders about adapters over gRPC: they end at the same loads as those over HTTP."""

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from baton.admin.v1 import admin_pb2 as pb
from baton.admin.v1 import admin_pb2_grpc as pb_grpc
from gateway.grpc.admin import admin
from tests.unit.gateway.attaching.test_adapter_loading import ONE, FakeTier


@pytest.fixture
async def tier() -> FakeTier:
    return FakeTier()


@pytest.fixture
async def stub(tier: FakeTier) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    gateway: Any = SimpleNamespace(
        workers=tier.workers,
        loading=tier.loading,
        served=SimpleNamespace(adapters=tier.names),
        models=lambda: ("m", *tier.names.names()),
        root=lambda name: "m",
    )
    admin(gateway, Random(1))(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield pb_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
    await server.stop(None)


async def test_an_adapter_is_loaded_and_unloaded(stub: Any, tier: FakeTier) -> None:
    tier.add()
    loaded = (await stub.LoadAdapter(pb.LoadAdapterRequest(name="a", folder="/a"))).adapter
    assert (loaded.name, loaded.model, loaded.hash) == ("a", "m", ONE) and tier.names.names() == ("a",)
    gone = (await stub.UnloadAdapter(pb.UnloadAdapterRequest(name="a"))).adapter
    assert gone.hash == ONE and tier.names.names() == ()


@pytest.mark.parametrize(
    ("call", "request_", "code", "what"),
    [
        ("LoadAdapter", pb.LoadAdapterRequest(folder="/a"), "INVALID_ARGUMENT", "name is missing"),
        ("LoadAdapter", pb.LoadAdapterRequest(name="a"), "INVALID_ARGUMENT", "folder is missing"),
        ("LoadAdapter", pb.LoadAdapterRequest(name="a", folder="/a", model="b"), "NOT_FOUND", "'b' is not served"),
        ("LoadAdapter", pb.LoadAdapterRequest(name="a", folder="/a"), "UNAVAILABLE", "no worker of model 'm'"),
        ("UnloadAdapter", pb.UnloadAdapterRequest(name="m"), "NOT_FOUND", "'m' is not served"),
    ],
)
async def test_a_bad_order_says_what_is_wrong(stub: Any, call: str, request_: Any, code: str, what: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=what) as refused:
        await getattr(stub, call)(request_)
    assert refused.value.code() is grpc.StatusCode[code]
