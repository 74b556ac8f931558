"""What a receipt signs of an answer: whatever is changed in one, in any API, whole or streamed, is refused by name."""

import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2
import pytest
from google.protobuf import json_format

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.grpc.api import services
from gateway.grpc.server import serve_grpc
from gateway.receipts.receipts import Receipts
from mesh.config import GatewayConfig
from tests.receipts.forging import forgeries, refusal

Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
LIKELY: Json = {"n": 2, "max_tokens": 3, "logprobs": 1}
SHORT: Json = {"sampling_params": {"max_new_tokens": 3}}
ALL = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
ASKED: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": HI, "n": 2, "logprobs": True, "top_logprobs": 1, "max_tokens": 3}),
    "completions": ("/v1/completions", {"prompt": ["a", "b"], "echo": True, "return_token_ids": True} | LIKELY),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 3, "top_logprobs": 1}),
    "message": ("/v1/messages", {"messages": HI, "max_tokens": 6}),
    "tokens": ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": LIKELY, "output_mode": "text"}),
    "batch": ("/generate", {"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": 1} | SHORT),
    "generate": ("/generate", {"text": "a"} | SHORT),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("asked", ASKED)
async def test_every_change_of_an_answer_is_refused_by_name(http: httpx2.AsyncClient, asked: str, stream: bool) -> None:
    path, body = ASKED[asked]
    more = ALL if stream and asked in ("chat", "completions", "tokens") else {}
    reply = await http.post(path, json=body | more | {"receipt": True, "stream": stream})
    assert reply.status_code == 200, reply.text
    key = (await http.get("/v1/receipts/key")).json()["key"]
    assert refusal(reply.content, key) is None
    assert not unnoticed(reply.content, key)


@pytest.fixture
async def rpc(core: Any, assets: Any, receipts: Receipts) -> AsyncIterator[Any]:
    api = services(core, assets, random=random.Random(3), receipts=receipts)
    server = await serve_grpc(GatewayConfig(grpc_address="127.0.0.1:0"), api)
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield pb_grpc.InferenceServiceStub(channel)
    await server.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_change_of_an_answer_over_grpc_is_refused_by_name(
    rpc: Any, receipts: Receipts, stream: bool
) -> None:
    request = pb.GenerateRequest(text="x", receipt=True, sampling=pb.SamplingOptions(n=2), logprobs={"top": 1})
    request.stop.max_tokens = 3
    if stream:
        asked = pb.StreamGenerateRequest(request=request, continuous_usage=True)
        messages = [message async for message in rpc.StreamGenerate(asked)]
    else:
        messages = [await rpc.Generate(request)]
    for names in (False, True):
        texts = [json_format.MessageToJson(each, preserving_proto_field_name=names) for each in messages]
        raw, key = "\n".join(texts).encode(), (await receipts.key()).public
        assert refusal(raw, key) is None
    assert not unnoticed(raw, key)


def unnoticed(raw: bytes, key: str) -> str:
    """The forgeries that are not refused, or not by name."""
    wrong = list[str]()
    for forged in forgeries(raw):
        said = refusal(forged.raw, key)
        if said is None or forged.name not in said:
            wrong.append(f"{forged.what} ({forged.name}): {said}")
    return "\n".join(wrong)
