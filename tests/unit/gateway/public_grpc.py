"""The public gRPC API on a free port, and helpers that its tests share."""

import random
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc import api as grpc_api
from gateway.grpc.load import MeshLoad
from gateway.grpc.server import serve_grpc
from mesh.config.services import GatewayConfig
from mesh.network.grpc_network import GrpcListening

CLASS = pb.NumericsClass(name="path=fp32", fingerprint="f00d")

# With documents, reasoning, tools and calls.
RICH_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for each in documents or [] %}[{{ each.text }}]{% endfor %}"
    "{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{% if shout %}!{% endif %}"
)

LOAD = MeshLoad(
    waiting=3,
    running=5,
    prefill_workers=1,
    decode_workers=2,
    queued_tokens=70,
    free_pages=25,
    total_pages=100,
    tokens_per_second=80.0,
)


async def serve(core: Any, assets: Any, **settings: Any) -> GrpcListening:
    api = grpc_api.services(core, assets, random=random.Random(3), load=lambda: LOAD)
    return await serve_grpc(GatewayConfig(**({"grpc_address": "127.0.0.1:0"} | settings)), api)


def ask(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "x"} | fields))


async def events_of(stub: Any, request: pb.GenerateRequest) -> list[pb.StreamGenerateResponse]:
    return [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    for detail in status.details:
        assert isinstance(detail, any_pb2.Any)
        name = detail.type_url.rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name)()
        detail.Unpack(found[name])
    return found
