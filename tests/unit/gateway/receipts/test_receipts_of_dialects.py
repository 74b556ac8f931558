"""Receipts in the other APIs: carried whole and streamed, kept by their ids, and the same record as OpenAI's own."""

import json
from typing import Any

import httpx2
import pytest

from cli.receipts.dialects import as_openai
from cli.receipts.requests import bodies
from gateway.receipts.canonical import ReceiptError, read_receipt
from gateway.receipts.shape import shaped
from gateway.receipts.signing import check_signature
from mesh.errors import WorkersDied

Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
# Bodies whose prompt, sampling and end are all said in the API's own words.
ASKED: dict[str, Json] = {
    "/v1/responses": {"input": "hi", "instructions": "be brief", "max_output_tokens": 9, "seed": 3, "top_k": 5},
    "/v1/messages": {"messages": HI, "system": "s", "max_tokens": 100_000, "stop_sequences": ["wor"], "seed": 3},
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"n": 2, "seed": 3, "max_tokens": 9}},
    "/generate": {"text": ["a", "bc"], "sampling_params": {"n": 2, "sampling_seed": 3, "temperature": 0.5}},
}
PATHS = sorted(ASKED)


def frames_of(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def without_id(receipt: Any) -> Any:
    """The part that answers to the same request share, however they are sent."""
    own = ("id", "request_id", "answer", "signature")
    return {name: value for name, value in receipt.items() if name not in own}


@pytest.mark.parametrize("path", PATHS)
async def test_whole_and_streamed_answers_carry_the_receipt_that_their_head_names(
    http: httpx2.AsyncClient, path: str
) -> None:
    whole = await http.post(path, json=ASKED[path] | {"receipt": True})
    streamed = await http.post(path, json=ASKED[path] | {"receipt": True, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    carrying = [frame for frame in frames_of(streamed.text) if '"receipt"' in json.dumps(frame)]
    assert len(carrying) == 1
    found = [read_receipt(whole.content), read_receipt(json.dumps(carrying[0].get("response", carrying[0])).encode())]
    for reply, receipt in zip((whole, streamed), found, strict=True):
        check_signature(receipt)
        assert reply.headers["x-baton-receipt"] == receipt["id"]
        assert (await http.get(f"/v1/receipts/{receipt['id']}")).json() == receipt
    assert without_id(found[0]) == without_id(found[1])


@pytest.mark.parametrize("path", PATHS)
async def test_the_request_of_another_api_is_replayed_as_one_of_openai(http: httpx2.AsyncClient, path: str) -> None:
    old = read_receipt((await http.post(path, json=ASKED[path] | {"receipt": True})).content)
    asked = list(bodies(shaped(old), json.loads(json.dumps(ASKED[path])), None, chat=False))
    assert len(asked) == len(old["prompts"])
    for body, prompt in zip(asked, old["prompts"], strict=True):
        endpoint = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        reply = await http.post(endpoint, json=body)
        assert reply.status_code == 200, reply.text
        again = reply.json()["receipt"]
        assert again["parameters"] == old["parameters"] and again["prompts"] == [prompt]


USED = [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]
RESULT = [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]


@pytest.mark.parametrize(
    "own",
    [
        {"tools": [TOOL]},
        {"tool_choice": {"type": "any"}},
        {"thinking": {"type": "enabled"}},
        {"messages": [*HI, {"role": "assistant", "content": USED}, {"role": "user", "content": RESULT}]},
    ],
)
def test_messages_are_known_by_any_member_of_their_own(own: Json) -> None:
    chat = as_openai({"messages": HI, "max_tokens": 9} | own)
    assert "max_tokens" not in chat and not {"thinking", "stop_sequences"} & set(chat)
    assert all(each["function"]["name"] == "f" for each in chat["tools"])
    assert {each["role"] for each in chat["messages"]} <= {"user", "assistant", "tool"}


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"messages": HI, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ],
)
async def test_a_schema_that_stands_flat_is_replayed_too(http: httpx2.AsyncClient, body: Json) -> None:
    path = "/v1/responses" if "input" in body else "/v1/messages"
    limit = {"max_output_tokens" if "input" in body else "max_tokens": 9}
    old = read_receipt((await http.post(path, json=body | limit | {"receipt": True})).content)
    (asked,) = bodies(shaped(old), body | limit, None, chat=False)
    again = (await http.post("/v1/chat/completions", json=asked)).json()["receipt"]
    assert again["parameters"] == old["parameters"] and again["prompts"] == old["prompts"]
    assert again["parameters"]["grammar"]


OPEN_TURN = [*HI, {"role": "assistant", "content": "I am"}]


@pytest.mark.parametrize(
    "body",
    [{"messages": OPEN_TURN, "max_tokens": 9}, {"messages": HI, "max_tokens": 100_000}],
    ids=["an assistant's turn that is continued", "more tokens than the context has"],
)
async def test_a_message_that_only_looks_like_a_chat_is_replayed_as_a_message(
    http: httpx2.AsyncClient, body: Json
) -> None:
    old = read_receipt((await http.post("/v1/messages", json=body | {"receipt": True})).content)
    (asked,) = bodies(shaped(old), body, None, chat=False)
    reply = await http.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    again = reply.json()["receipt"]
    assert again["parameters"] == old["parameters"] and again["prompts"] == old["prompts"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HI, "max_tokens": 9},
        {"messages": OPEN_TURN, "max_tokens": 9, "n": 1},
        {"messages": OPEN_TURN, "max_tokens": 9, "continue_final_message": False},
        {"messages": OPEN_TURN, "max_tokens": 9, "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [*HI, {"role": "assistant", "content": "a", "name": "b"}], "max_tokens": 9},
    ],
)
def test_a_body_that_can_be_a_chat_only_stays_one(body: Json) -> None:
    """Negative control."""
    assert as_openai(body, 9) == body


@pytest.mark.parametrize("body", [{"messages": HI, "max_tokens": 9, "tool_choice": "auto"}, {"prompt": "a", "n": 2}])
def test_bodies_of_openai_stay_as_they_are(body: Json) -> None:
    """Negative control."""
    assert as_openai(body) == body


def test_a_body_that_its_api_refuses_is_named() -> None:
    with pytest.raises(ReceiptError, match="input is missing"):
        as_openai({"input": []})


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_field_there_is_none(http: httpx2.AsyncClient, path: str) -> None:
    """Negative control."""
    for stream in (False, True):
        reply = await http.post(path, json=ASKED[path] | {"stream": stream})
        assert '"receipt"' not in reply.text and "x-baton-receipt" not in reply.headers


@pytest.mark.parametrize("path", PATHS)
async def test_a_failed_answer_of_any_api_has_none(http: httpx2.AsyncClient, core: Any, path: str) -> None:
    core.fail_at = {3: WorkersDied("three workers died")}
    for stream in (False, True):
        reply = await http.post(path, json=ASKED[path] | {"receipt": True, "stream": stream})
        assert '"receipt":{' not in reply.text
        id = reply.headers.get("x-baton-receipt", "rcpt-0")
        assert (await http.get(f"/v1/receipts/{id}")).status_code == 404


@pytest.mark.parametrize("path", PATHS)
async def test_each_api_honours_the_wanted_numerics_class(http: httpx2.AsyncClient, path: str) -> None:
    good, bad = ({"name": f"path={name}", "fingerprint": "f00d"} for name in ("fp32", "pairs"))
    assert (await http.post(path, json=ASKED[path] | {"numerics_class": good})).status_code == 200
    refused = await http.post(path, json=ASKED[path] | {"numerics_class": bad})
    assert refused.status_code >= 400 and "CLASS_UNAVAILABLE" in refused.text
