"""`POST /v1/messages` and its count of tokens, in the shapes that clients of Anthropic's API read."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.dialects.anthropic.errors import PING
from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from mesh.errors import Unavailable
from tests.harness.served_api import served_api
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.test_responses import CALL, TEMPLATE, prompt_of

HI: Any = {"model": "tiny", "max_tokens": 300, "messages": [{"role": "user", "content": "hi"}]}
ADD: Any = {"name": "add", "description": "Adds", "input_schema": {"type": "object", "properties": {}}}
SCHEMA: Any = {"type": "json_schema", "schema": {"type": "object", "properties": {"total": {"type": "integer"}}}}
HEADERS = {"x-api-key": "none", "anthropic-version": "2023-06-01", "x-request-id": "same"}


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def post(url: str, body: Any, path: str = "/v1/messages") -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}{path}", json=body, headers=HEADERS)


async def stream(url: str, **fields: Any) -> list[Any]:
    """The data of all events; each event has the type of its data."""
    answer = await post(url, HI | fields | {"stream": True})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    found = list[Any]()
    for event in answer.text.removesuffix("\n\n").split("\n\n"):
        kind, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def joined(events: list[Any]) -> list[Any]:
    """The content that a client puts together from the events."""
    content, pieces = list[Any](), dict[int, str]()
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, block = dict(event["delta"]), content[event["index"]]
            kind = delta.pop("type")
            ((name, value),) = delta.items()
            if kind == "input_json_delta":
                pieces[event["index"]] = pieces.get(event["index"], "") + value
            else:
                block[name] += value
    for index, arguments in pieces.items():
        content[index]["input"] = json.loads(arguments)
    return content


async def test_a_message_is_answered_whole(url: str, core: Any) -> None:
    answer = await post(url, HI | {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]})
    found = answer.json()
    assert (found["type"], found["role"], found["model"], found["id"]) == ("message", "assistant", "tiny", "msg_same")
    assert found["content"] == [{"type": "text", "text": "hello world"}]
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    prompt = len(core.streams[0].choice.prompt)
    usage = found["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (prompt - 3, 3, 12)
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "same"
    assert prompt_of(core) == "Be\nbrief.hi"


async def test_the_events_of_a_stream_come_in_order(url: str, core: Any) -> None:
    core.reply = b"<think>hm</think>A " + CALL
    events = await stream(url, tools=[ADD])
    kinds = [event["type"] for event in events]
    once = [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    first = [block[0], "ping", *block[1:]]
    assert once == ["message_start", *first, *block, *block, "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_streamed_and_whole_messages_are_equal(url: str, core: Any) -> None:
    core.reply = b"<think>so so</think>Wait " + CALL + b"\n" + CALL
    whole = (await post(url, HI | {"tools": [ADD]})).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][-1]["input"] == {"a": 1}
    events = await stream(url, tools=[ADD])
    assert joined(events) == whole["content"]
    assert events[-2]["usage"] == whole["usage"]


async def test_what_a_message_returned_may_stand_in_the_next_one(url: str, core: Any) -> None:
    core.reply = b"<think>plus</think>Wait " + CALL
    content = (await post(url, HI | {"tools": [ADD]})).json()["content"]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": [{"type": "text", "text": "2"}]}
    messages = [
        *HI["messages"],
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    await post(url, HI | {"tools": [ADD], "messages": messages})
    wrote = '(plus)Wait <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert prompt_of(core).endswith(f"hi{wrote}<|tool|>2Well?")
    failed = [*messages[:2], {"role": "user", "content": [result | {"is_error": True}]}]
    await post(url, HI | {"tools": [ADD], "messages": failed})
    assert prompt_of(core).endswith("<|tool|>Error: 2")


async def test_an_answer_continues_the_assistants_message_at_the_end(url: str, core: Any) -> None:
    messages = [*HI["messages"], {"role": "assistant", "content": "The answer is ("}]
    assert (await post(url, HI | {"messages": messages})).status_code == 200
    assert prompt_of(core) == "hiThe answer is ("


async def test_messages_of_one_role_that_follow_each_other_become_one(url: str, core: Any) -> None:
    messages = [{"role": "user", "content": text} for text in ("a", "b")]
    messages += [{"role": "assistant", "content": text} for text in ("c", "d")]
    await post(url, HI | {"messages": [*messages, {"role": "user", "content": "e"}]})
    assert prompt_of(core) == "a\nbcde"


@pytest.mark.parametrize(
    ("fields", "reply", "reason", "sequence"),
    [
        ({}, b"hello", "end_turn", None),
        ({"max_tokens": 3}, b"hello", "max_tokens", None),
        ({"stop_sequences": ["lo"]}, b"hello", "stop_sequence", "lo"),
        ({"tools": [ADD]}, CALL, "tool_use", None),
        ({"max_tokens": 5000}, b"x" * 600, "model_context_window_exceeded", None),
        ({"max_tokens": 5000}, b"x", "end_turn", None),
    ],
)
async def test_the_reason_for_the_end_is_named(
    url: str, core: Any, fields: Any, reply: bytes, reason: str, sequence: str | None
) -> None:
    core.reply = reply
    found = (await post(url, HI | fields)).json()
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)
    assert (await stream(url, **fields))[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_tool_choice_is_read_as_anthropic_spells_it(url: str, core: Any) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
        assert (await post(url, HI | {"tools": [ADD], "tool_choice": choice})).status_code == 200
        assert "add" in core.streams[-1].choice.sampling.grammar
    await post(url, HI | {"tools": [ADD], "tool_choice": {"type": "none"}})
    assert prompt_of(core) == "hi", "the model sees no tools"
    core.reply = CALL + b"\n" + CALL
    one = {"type": "auto", "disable_parallel_tool_use": True}
    found = (await post(url, HI | {"tools": [ADD], "tool_choice": one})).json()
    assert [block["type"] for block in found["content"]] == ["tool_use"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_budget_beyond_its_range_is_refused_by_a_model_that_does_not_reason_too(url: str, path: str) -> None:
    body = {name: value for name, value in HI.items() if name != "max_tokens" or path == "/v1/messages"}
    for tokens, status in ((2**31 - 1, 200), (2**31, 400)):
        thinking = {"type": "enabled", "budget_tokens": tokens}
        answer = await post(url, body | {"thinking": thinking}, path)
        assert answer.status_code == status and (status == 200 or "thinking.budget_tokens" in answer.text)


async def test_thinking_switches_the_template_and_may_be_left_out_of_the_answer(url: str, core: Any) -> None:
    core.reply = b"<think>secret</think>A"
    on = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    answer = await post(url, HI | {"thinking": on})
    assert prompt_of(core) == "hi[True]" and "x-baton-ignored" not in answer.headers
    reasoning = core.streams[-1].choice.sampling.adjustments.reasoning
    assert reasoning.tokens == 1024 and [place.tokens[0] for place in reasoning.end] == [*b"</think>"]
    thinking, text = answer.json()["content"]
    assert (thinking["thinking"], text["text"]) == ("", "A") and thinking["signature"]
    assert "secret" not in json.dumps(await stream(url, thinking=on))
    await post(url, HI | {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}})
    assert prompt_of(core) == "hi[False]"


async def test_a_schema_becomes_the_form_of_the_answer(url: str, core: Any) -> None:
    core.reply = b'{"total": 3}'
    for fields in ({"output_config": {"format": SCHEMA}}, {"output_format": SCHEMA}):
        assert (await post(url, HI | fields)).status_code == 200
        assert "total" in core.streams[-1].choice.sampling.grammar


async def test_tokens_are_counted_as_the_message_computes_them(url: str, core: Any) -> None:
    fields = {"system": "Be brief.", "tools": [ADD], "thinking": {"type": "disabled"}}
    counted = await post(url, {"messages": HI["messages"]} | fields, "/v1/messages/count_tokens")
    usage = (await post(url, HI | fields)).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert len(core.streams) == 1, "counting runs nothing"
    refused = await post(url, HI, "/v1/messages/count_tokens")
    assert refused.status_code == 400 and "max_tokens" in refused.json()["error"]["message"]


async def test_hints_are_named_and_change_nothing(url: str) -> None:
    hint = {"type": "ephemeral"}
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": hint}]}]
    more = {"metadata": {"user_id": "me"}, "cache_control": hint, "context_management": {"edits": []}}
    answer = await post(url, HI | {"messages": messages, "tools": [ADD | {"cache_control": hint}]} | more)
    assert answer.status_code == 200
    names = set(answer.headers["x-baton-ignored"].split(", "))
    assert names == {"metadata", "cache_control", "messages.content.cache_control", "tools.cache_control"}
    assert "x-baton-ignored" not in (await post(url, HI)).headers


def user(*blocks: Any) -> Any:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> Any:
    return {"messages": [*HI["messages"], {"role": "assistant", "content": list(blocks)}]}


REFUSED: Any = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (user(), "messages[0].content"),
    (user("x"), "messages[0].content[0]"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "image", "source": {}}), "messages[0].content[0].type"),
    (user({"type": "tool_result", "tool_use_id": "x"}), "messages[0].content[0].tool_use_id"),
    (assistant({"type": "tool_use", "id": "x", "name": "f", "input": []}), "messages[1].content[0].input"),
    (assistant({"type": "tool_use", "id": "x", "name": "f", "input": {}}), "messages[1]"),
    (assistant({"type": "redacted_thinking", "data": "x"}), "messages[1]"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ({"tools": [ADD | {"input_schema": 3}]}, "tools[0].input_schema"),
    ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tool_choice": {"type": "tool"}, "tools": [ADD]}, "tool_choice.name"),
    ({"tool_choice": {"type": "all"}, "tools": [ADD]}, "tool_choice.type"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
        "output_config.format.schema.not",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 200}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"stop": "x"}, "stop"),
]


async def test_what_cannot_be_honoured_is_refused_by_name(url: str, core: Any) -> None:
    for fields, param in REFUSED:
        answer = await post(url, HI | fields)
        found = answer.json()
        assert (answer.status_code, found["type"], found["request_id"]) == (400, "error", "same"), fields
        assert (found["error"]["type"], found["error"]["param"]) == ("invalid_request_error", param)
    assert core.streams == []


async def test_errors_have_the_types_of_anthropic(url: str, core: Any) -> None:
    assert (await post(url, HI | {"model": "other"})).json()["error"]["type"] == "not_found_error"
    core.refuse = Unavailable("no worker", retry_after_seconds=2)
    answer = await post(url, HI | {"stream": True})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")
    assert answer.headers["x-should-retry"] == "true" and answer.headers["retry-after"] == "2"
    async with httpx2.AsyncClient(timeout=None) as client:
        wrong = await client.get(f"{url}/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


async def test_an_error_in_mid_stream_is_the_last_event(url: str, core: Any) -> None:
    core.fail_at = {4: Unavailable("the worker is gone")}
    events = await stream(url)
    assert [event["type"] for event in events][-2:] == ["content_block_delta", "error"]
    assert events[-1]["error"]["type"] == "overloaded_error" and events[-1]["request_id"] == "same"
    assert events[-1]["error"]["details"]["tokens_spent"] == "0"


async def test_an_idle_stream_gets_pings(assets: Assets) -> None:
    core = FakeCore(ends=False, reply=b"", limits=DoorConfig(keep_alive_seconds=0.05))
    async with served_api(core, assets) as address, httpx2.AsyncClient(timeout=None) as client:
        async with client.stream("POST", f"http://{address}/v1/messages", json=HI | {"stream": True}) as answer:
            async for chunk in answer.aiter_raw():
                assert chunk == PING
                break
