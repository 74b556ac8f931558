"""The trace of a request over gRPC: its method, its status, and the client's own trace in the metadata."""

import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.grpc import api as grpc_api
from gateway.tracing.traces import RecentTraces
from mesh.errors import Unavailable
from mesh.network.grpc_network import GrpcNetwork
from mesh.telemetry.spans import RecordingTelemetry, SpanRecord
from tests.harness.waiting import within
from tests.unit.gateway.public_grpc import ask, events_of

SERVICE = "baton.inference.v1.InferenceService"
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def telemetry() -> RecordingTelemetry:
    return RecordingTelemetry()


@pytest.fixture
async def traced(core: Any, assets: Any, telemetry: RecordingTelemetry) -> AsyncIterator[Any]:
    traces = RecentTraces(telemetry, random=random.Random(4))
    network = GrpcNetwork(also=grpc_api.services(core, assets, random=random.Random(3), traces=traces))
    server = await network.listen("127.0.0.1:0", {}, lambda register: None)
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield pb_grpc.InferenceServiceStub(channel)
    await server.close()


async def root(telemetry: RecordingTelemetry) -> SpanRecord:
    """The server's span: a client may have its answer before the server has ended it."""

    def found() -> list[SpanRecord]:
        return [span for span in telemetry.spans if span.name.startswith(SERVICE)]

    await within(60.0, lambda: bool(found()))
    (span,) = found()
    return span


async def test_the_rpc_is_the_server_span_below_the_clients_own(traced: Any, telemetry: RecordingTelemetry) -> None:
    await traced.Generate(ask(), metadata=(("traceparent", CLIENT), ("x-request-id", "mine")))
    span = await root(telemetry)
    assert span.name == f"{SERVICE}/Generate" and f"{span.parent_id:016x}" == CLIENT[36:52]
    known = {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/Generate",
        "rpc.response.status_code": "OK",
        "baton.request_id": "mine",
        "baton.status": "ok",
    }
    assert span.attributes.items() >= known.items()
    assert any(other.name == "text_completion tiny" for other in telemetry.spans)


async def test_a_streamed_chat_is_a_chat(traced: Any, telemetry: RecordingTelemetry) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    await events_of(traced, pb.GenerateRequest(chat=chat))
    assert (await root(telemetry)).name == f"{SERVICE}/StreamGenerate"
    assert any(other.name == "chat tiny" for other in telemetry.spans)


async def test_an_error_is_flagged_with_its_status(traced: Any, core: Any, telemetry: RecordingTelemetry) -> None:
    core.refuse = Unavailable("no worker")
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.Generate(ask())
    span = await root(telemetry)
    assert span.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert span.attributes["error.type"] == span.error == "UNAVAILABLE"


async def test_a_cancelled_call_is_a_cancelled_request(traced: Any, core: Any, telemetry: RecordingTelemetry) -> None:
    core.ends = False
    call = traced.StreamGenerate(pb.StreamGenerateRequest(request=ask()))
    await call.read()
    call.cancel()
    assert (await root(telemetry)).attributes["baton.status"] == "cancelled"
