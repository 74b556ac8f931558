"""What stands beside Generate on the clients' port: tokens, health, reflection, load reports, and vllm.Inference."""

import asyncio
from random import Random
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from baton.inference.v1 import inference_pb2 as pb
from baton.rpc.v1 import rpc_pb2
from gateway.grpc.api import Generating, services
from gateway.grpc.request import AskedRequest
from gateway.grpc.server import serve_grpc
from gateway.grpc.whole import whole
from gateway.tracing.traces import RecentTraces
from mesh.config.services import GatewayConfig
from mesh.errors import Unavailable
from mesh.network.grpc_network import GrpcListening
from mesh.telemetry.spans import Silent
from tests.harness.waiting import within
from tests.unit.gateway.public_grpc import LOAD, ask, details_of, events_of

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
INFERENCE = "baton.inference.v1.InferenceService"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])


# ---- tokens


@pytest.mark.parametrize(
    ("input_", "ids"), [({"text": "ab"}, [97, 98]), ({"chat": CHAT}, [258, *b"hi", 257, 259])], ids=["text", "chat"]
)
async def test_a_text_or_chat_has_the_tokens_that_generate_computes(
    stub: Any, core: Any, input_: dict[str, Any], ids: list[int]
) -> None:
    tokens = await stub.Tokenize(pb.TokenizeRequest(**input_))
    assert (list(tokens.token_ids), tokens.context_tokens) == (ids, 512)
    assert (await stub.CountTokens(pb.CountTokensRequest(**input_))).tokens == len(ids)
    await stub.Generate(pb.GenerateRequest(**input_))
    assert list(core.streams[0].choice.prompt) == ids


async def test_token_ids_become_their_text_with_or_without_special_tokens(stub: Any) -> None:
    ids = [258, *"né".encode(), 257]
    whole = await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))
    assert whole.text == "<|user|>né<|end|>"
    bare = await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=True))
    assert bare.text == "né"


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("CountTokens", pb.CountTokensRequest(), "input"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[261]), "token_ids"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1] * 513), "token_ids"),
        ("CountTokens", pb.CountTokensRequest(chat=pb.Chat()), "chat.messages"),
        ("Tokenize", pb.TokenizeRequest(text="a", model="other"), "model"),
    ],
)
async def test_a_wrong_field_is_named(stub: Any, core: Any, method: str, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(stub, method)(request_, metadata=(("x-request-id", "r3"),))
    details = details_of(refused.value)
    assert [violation.field for violation in details["BadRequest"].field_violations] == [field]
    assert details["RequestInfo"].request_id == "r3"
    assert len(core.errors) == 1


# ---- health and reflection


async def test_health_lists_every_service(channel: grpc.aio.Channel, server: GrpcListening) -> None:
    listed: Any = channel.unary_unary("/grpc.health.v1.Health/List")

    async def statuses() -> dict[str, int]:
        found = rpc_pb2.HealthListResponse.FromString(await listed(b"")).statuses
        return {name: status.status for name, status in found.items()}

    names = {"", INFERENCE, "baton.inference.v1.ModelService", "vllm.Inference"}
    assert await statuses() == dict.fromkeys(names, SERVING)
    await server.set_serving(False)
    assert await statuses() == dict.fromkeys(names, NOT_SERVING)


async def test_health_says_no_while_warming_up_and_at_the_end_and_watchers_see_both(core: Any, assets: Any) -> None:

    api = services(core, assets, random=Random(1))
    server = await serve_grpc(GatewayConfig(grpc_address="127.0.0.1:0"), api, serving=False)
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=INFERENCE))).status == NOT_SERVING
        leaving, staying = (health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE)) for _ in range(2))
        assert [(await watch.read()).status for watch in (leaving, staying)] == [NOT_SERVING] * 2
        leaving.cancel()  # another watcher of the same service must not be forgotten with it
        await asyncio.sleep(0.05)
        await server.set_serving(True)
        assert (await staying.read()).status == SERVING
        closing = asyncio.create_task(server.close())
        assert (await staying.read()).status == NOT_SERVING
        assert await staying.read() is grpc.aio.EOF
        await closing


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_the_services_and_itself(channel: grpc.aio.Channel, version: str) -> None:
    reflect: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = reflect()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {INFERENCE, "vllm.Inference", f"grpc.reflection.{version}.ServerReflection"} <= names
    assert not any("Registry" in name or "Admin" in name for name in names)
    for name in [*sorted(names), f"grpc.reflection.{version}.ServerReflectionRequest"]:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = await call.read()
        assert answer.file_descriptor_response.file_descriptor_proto, name
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"))
    assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    await call.done_writing()


async def test_health_and_reflection_answer_garbage_without_a_traceback(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for call in (check(b"\xff"), watch(b"\xff").read()):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    reflect: Any = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    call = reflect()
    await call.write(b"\xff")
    answer = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
    assert answer.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    call.cancel()
    assert caplog.records == []


async def test_the_port_of_clients_does_not_serve_workers_and_operators(channel: grpc.aio.Channel) -> None:
    for method in ("baton.worker.v1.RegistryService/Register", "baton.admin.v1.AdminService/Drain"):
        call: Any = channel.unary_unary(f"/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- load reports, deadlines, cancels


class FakeContext:
    """A call as the server sees it: gRPC's Python client keeps the load trailer to itself, for its balancers."""

    def __init__(self) -> None:
        self.trailers: dict[str, Any] = {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4242"

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailers = dict(metadata)


async def test_trailers_carry_the_request_and_the_load_for_balancers(stub: Any, core: Any, assets: Any) -> None:
    call = stub.Generate(ask(request_id="r7"))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "r7"
    random, context = Random(1), FakeContext()
    generating = Generating(core, assets, random, RecentTraces(Silent(), random=random), lambda: LOAD, None)

    async def read(_: Any) -> AskedRequest:
        return AskedRequest(ask(request_id="r8"))

    await whole(generating.events(b"", context, "Generate", read))
    assert context.trailers["x-request-id"] == "r8"
    report = rpc_pb2.OrcaLoadReport.FromString(context.trailers["endpoint-load-metrics-bin"])
    assert report.application_utilization == report.utilization["kv_cache"] == 0.75
    assert dict(report.named_metrics) == {
        "kv_cache_usage_perc": 0.75,
        "num_requests_waiting": 3,
        "num_requests_running": 5,
    }
    assert dict(report.request_cost) == {"prompt_tokens": 1, "cached_tokens": 3, "completion_tokens": 12}
    # The numbers of xds.data.orca.v3.OrcaLoadReport, on which clients of other languages rely.
    numbers = {field.name: field.number for field in report.DESCRIPTOR.fields}
    assert numbers == {
        "request_cost": 4,
        "utilization": 5,
        "named_metrics": 8,
        "application_utilization": 9,
    }


async def test_cancelling_the_call_before_the_first_token_cancels_every_choice(stub: Any, core: Any) -> None:
    core.reply, core.ends = b"", False
    request = ask(sampling=pb.SamplingOptions(n=2))
    streamed = stub.StreamGenerate(pb.StreamGenerateRequest(request=request))
    unary = stub.Generate(request)
    await within(20, lambda: len(core.streams) == 4)
    assert not any(stream.cancelled for stream in core.streams)
    streamed.cancel()
    await within(20, lambda: sum(stream.cancelled for stream in core.streams) == 2)
    unary.cancel()
    await within(20, lambda: all(stream.cancelled for stream in core.streams))


async def test_the_deadline_shrinks_on_its_way_to_the_core(stub: Any, core: Any) -> None:
    await stub.Generate(ask(), timeout=30)
    assert 0 < core.streams[0].choice.deadline_seconds < 30.5  # gRPC rounds up


async def test_an_error_in_the_middle_reaches_both_kinds_of_call(stub: Any, core: Any, assets: Any) -> None:

    core.fail_at = {2: Unavailable("later")}
    for call in (stub.Generate(ask()), events_of(stub, ask())):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
