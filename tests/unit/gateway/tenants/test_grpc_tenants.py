"""Tenants over gRPC: who gets in by which metadata or certificate, limits as statuses, and salts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.client import Client
from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from baton.vllm.v1 import vllm_pb2 as vllm
from baton.vllm.v1 import vllm_pb2_grpc as vllm_grpc
from gateway.prompts.assets import Assets
from gateway.tenants.keys import KeyFile
from gateway.tenants.tenants import Tenants
from tests.harness.waiting import within
from tests.unit.certificates import Authority
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.emitting_core import EmittingCore
from tests.unit.gateway.fake_mesh import mesh
from tests.unit.gateway.public_grpc import ask, details_of
from tests.unit.gateway.tenants.keys_files import SetClock, guarded_grpc, key_of, write_keys

Metadata = tuple[tuple[str, str], ...]
NOBODY: Metadata = ()


def shows(name: str) -> Metadata:
    return (("authorization", f"Bearer {key_of(name)}"),)


@dataclass
class GuardedPort:
    address: str
    channel: grpc.aio.Channel
    stub: Any
    tenants: Tenants
    clock: SetClock


@pytest.fixture
async def port(core: Any, assets: Assets, tmp_path: Path) -> AsyncIterator[GuardedPort]:
    rows = {"alice": "tokens_per_minute=600 burst_tokens=40", "bob": "concurrent=2 priority=7"}
    clock = SetClock()
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", **rows)), clock)
    async with guarded_grpc(core, assets, tenants) as server, grpc.aio.insecure_channel(server.address) as channel:
        yield GuardedPort(server.address, channel, pb_grpc.InferenceServiceStub(channel), tenants, clock)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        if hasattr(call, "read"):
            await call.read()
        else:
            await call
    return refused.value


async def test_every_method_but_health_and_reflection_needs_a_key(port: GuardedPort, core: FakeCore) -> None:
    models: Any = pb_grpc.ModelServiceStub(port.channel)
    other: Any = vllm_grpc.InferenceStub(port.channel)
    calls = [
        port.stub.Generate(ask()),
        port.stub.StreamGenerate(pb.StreamGenerateRequest(request=ask())),
        port.stub.Embed(pb.EmbedRequest()),
        port.stub.CountTokens(pb.CountTokensRequest(text="x")),
        port.stub.Tokenize(pb.TokenizeRequest(text="x")),
        port.stub.Detokenize(pb.DetokenizeRequest()),
        models.ListModels(pb.ListModelsRequest()),
        other.Generate(vllm.GenerateRequest(text="x")),
        other.GenerateStream(vllm.GenerateRequest(text="x")),
    ]
    for call in calls:
        error = await refusal(call)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert details_of(error)["ErrorInfo"].reason == "UNAUTHENTICATED"
    assert core.errors == ["UNAUTHENTICATED"] * len(calls) and not core.streams
    health: Any = health_pb2_grpc.HealthStub(port.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("metadata", "knows"),
    [
        (shows("bob"), True),
        ((("x-api-key", key_of("bob")),), True),
        ((*shows("bob"), ("x-api-key", key_of("bob"))), True),
        (shows("carol"), False),
        ((*shows("bob"), *shows("bob")), False),
        ((*shows("alice"), *shows("bob")), False),
        ((*shows("bob"), ("x-api-key", key_of("alice"))), False),
        ((("authorization", key_of("bob")),), False),
        ((("authorization-bin", key_of("bob").encode()),), False),
    ],
)
async def test_one_key_comes_in_the_metadata(port: GuardedPort, metadata: Any, knows: bool) -> None:
    call = port.stub.Generate(ask(), metadata=metadata)
    if knows:
        assert (await call).choices
    else:
        assert (await refusal(call)).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_refused_call_is_named_as_its_client_wants(port: GuardedPort) -> None:
    error = await refusal(port.stub.Generate(ask(), metadata=(("x-request-id", "mine"),)))
    assert details_of(error)["RequestInfo"].request_id == "mine"
    odd = await refusal(port.stub.Generate(ask(), metadata=(("x-request-id", "not a name"),)))
    assert len(details_of(odd)["RequestInfo"].request_id) == 32


async def test_the_helper_of_the_stubs_shows_its_key(port: GuardedPort) -> None:
    async with Client(port.address, api_key=key_of("bob")) as client:
        assert await client.generate_text("x", max_tokens=3) and await client.models() == ["tiny"]
        assert await client.count_tokens("xyz") == 3


async def test_salts_and_priorities_are_the_tenants(port: GuardedPort, core: FakeCore) -> None:
    for name in ("alice", "bob"):
        await port.stub.Generate(ask(cache_salt="s", priority=5), metadata=shows(name))
    alice, bob = (stream.choice for stream in core.streams)
    assert alice.salt != bob.salt and (alice.priority, bob.priority) == (5, 12)
    error = await refusal(port.stub.Generate(ask(priority=-1), metadata=shows("alice")))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(error)["BadRequest"].field_violations[0].field == "priority"


async def test_limits_are_statuses_with_quota_and_time(assets: Assets, tmp_path: Path) -> None:
    core, clock = EmittingCore(mesh=mesh(model="tiny")), SetClock()
    rows = {"alice": "tokens_per_minute=600 burst_tokens=40", "bob": "concurrent=2"}
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", **rows)), clock)
    async with guarded_grpc(core, assets, tenants) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.InferenceServiceStub(channel)
        request = ask(text="x" * 30, stop=pb.StopOptions(max_tokens=50))
        stream = stub.StreamGenerate(pb.StreamGenerateRequest(request=request), metadata=shows("alice"))
        await within(20, lambda: core.requests)
        core.emit(40)
        assert (await stream.read()).HasField("started")
        stream.cancel()
        await within(20, lambda: not core.running)
        error = await refusal(stub.Generate(ask(), metadata=shows("alice")))
        details = details_of(error)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and details["ErrorInfo"].reason == "RATE_LIMITED"
        assert details["RetryInfo"].retry_delay.ToMilliseconds() == 3100
        assert details["QuotaFailure"].violations[0].subject == "tenant:alice"
        assert (await stub.CountTokens(pb.CountTokensRequest(text="x"), metadata=shows("alice"))).tokens == 1
        emitted = pb.Emitted(index=0, token_ids=[97] * 20)
        clock.now += 4
        continued = ask(emitted=[emitted], stop=pb.StopOptions(max_tokens=50), sampling=pb.SamplingOptions(seed=1))
        call = asyncio.ensure_future(_answer(stub, continued, "alice"))
        await within(20, lambda: len(core.requests) == 2)
        use = tenants._uses["alice"]
        assert use.prompt_tokens == 30 + 1 + 20, "tokens that a client brings along are computed as a prompt is"
        call.cancel()
        running = [stub.Generate(ask(), metadata=shows("bob")) for _ in range(2)]
        await within(20, lambda: len(core.requests) == 4)
        assert (await refusal(stub.Generate(ask(), metadata=shows("bob")))).code().name == "RESOURCE_EXHAUSTED"
        for each in running:
            each.cancel()
        await within(20, lambda: tenants._uses["bob"].choices == 0)
        await within(20, lambda: use.choices == use.aside == 0)


async def _answer(stub: Any, request: pb.GenerateRequest, name: str) -> Any:
    return await stub.Generate(request, metadata=shows(name))


async def test_a_certificate_names_a_tenant(core: FakeCore, assets: Assets, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    ours = authority.sign(tmp_path / "ours")
    robot = authority.sign(tmp_path / "robot", names="DNS:robot.internal")
    stranger = authority.sign(tmp_path / "stranger", names="DNS:stranger.internal")
    keys = write_keys(tmp_path / "keys", alice="")
    with keys.open("a") as more:
        more.write("robot certificate:robot.internal priority=9\n")
    files = {f"tls_{what}": ours / f"{name}.pem" for what, name in FILES.items()}
    tenants = Tenants(KeyFile(keys), SetClock())
    async with guarded_grpc(core, assets, tenants, **files) as server:
        for folder, metadata, code in (
            (robot, NOBODY, None),
            (robot, shows("alice"), None),
            (robot, shows("nobody"), grpc.StatusCode.UNAUTHENTICATED),
            (stranger, NOBODY, grpc.StatusCode.UNAUTHENTICATED),
        ):
            content = [(folder / f"{name}.pem").read_bytes() for name in ("ca", "key", "certificate")]
            credentials = grpc.ssl_channel_credentials(*content)
            async with grpc.aio.secure_channel(server.address, credentials) as channel:
                stub: Any = pb_grpc.InferenceServiceStub(channel)
                if code is None:
                    await stub.Generate(ask(), metadata=metadata)
                else:
                    assert (await refusal(stub.Generate(ask(), metadata=metadata))).code() is code
    assert [stream.choice.priority for stream in core.streams] == [9, 0]


FILES = {"certificate": "certificate", "key": "key", "ca": "ca"}
