"""What a receipt signs of an answer: whatever is changed in one, in any API, whole or streamed, is refused by name."""

from typing import Any

import httpx2
import pytest
from google.protobuf import json_format

from baton.inference.v1 import inference_pb2 as pb
from gateway.dialects.anthropic.errors import AnthropicDialect
from gateway.dialects.common.dialect import OpenAiDialect
from gateway.receipts.answers.fields import SentAnswer, covered
from gateway.receipts.answers.file import read_answer
from gateway.receipts.draft import DraftHead, ReceiptDraft
from gateway.receipts.receipts import OpenReceipt, Receipts
from gateway.validation.client_request import ClientRequest
from gateway.validation.validate import ValidRequest
from tests.receipts.forging import forgeries, refusal

Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
LIKELY: Json = {"n": 2, "max_tokens": 3, "logprobs": 1}
VALID = ValidRequest(ClientRequest("r", (1,)), 1, (), (), frozenset())
SHORTER: Json = {"n": 2, "max_tokens": 2}
SHORT: Json = {"sampling_params": {"max_new_tokens": 3}}
ALL = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
ASKED: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": HI, "n": 2, "logprobs": True, "top_logprobs": 1, "max_tokens": 3}),
    "echo": ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "So"}], "echo": True} | SHORTER),
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
    more = ALL if stream and asked in ("chat", "echo", "completions", "tokens") else {}
    reply = await http.post(path, json=body | more | {"receipt": True, "stream": stream})
    assert reply.status_code == 200, reply.text
    key = (await http.get("/v1/receipts/key")).json()["key"]
    assert refusal(reply.content, key) is None
    assert not unnoticed(reply.content, key)


OWN = ("id", "usage", "timings", "created", "model", "request_id", "prompt_logprobs", "system_fingerprint")


@pytest.mark.parametrize("asked", ["chat", "echo", "completions", "response", "message", "tokens"])
async def test_a_stream_amounts_to_the_whole_answer(http: httpx2.AsyncClient, asked: str) -> None:
    """Except for what each answer has of its own, or streams have on demand."""
    path, body = ASKED[asked]
    found = list[dict[str, str]]()
    for stream in (False, True):
        more = {"receipt": True, "stream": stream} | ({"seed": 3} if asked != "tokens" else {})
        reply = await http.post(path, json=body | more, headers={"x-request-id": "r"})
        answer = read_answer(reply.content).answer
        assert answer is not None
        fields = covered(SentAnswer(answer.value), "5")["fields"]
        found.append({name: digest for name, digest in fields if not name.startswith(OWN)})
    assert found[0] == found[1] and len(found[0]) > 5


@pytest.mark.parametrize("asked", ["chat", "message"])
async def test_what_keeps_a_slow_stream_alive_changes_nothing(http: httpx2.AsyncClient, asked: str) -> None:
    path, body = ASKED[asked]
    reply = await http.post(path, json=body | {"receipt": True, "stream": True})
    key = (await http.get("/v1/receipts/key")).json()["key"]
    alive = (AnthropicDialect if asked == "message" else OpenAiDialect).alive
    assert refusal(reply.content.replace(b"\n\n", b"\n\n" + alive), key) is None


async def test_a_call_in_which_the_model_wrote_a_name_twice_is_sent_all_the_same(receipts: Receipts) -> None:
    open_receipt = OpenReceipt(receipts, ReceiptDraft(DraftHead("rcpt-1", "r", "m", 1, "1"), [VALID]))
    members = await open_receipt.of_whole(lambda: [b'{"content":[{"type":"tool_use","input":{"a":1,"a":2}}]}'])
    assert members["receipt"]["answer"]["fields"]


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
