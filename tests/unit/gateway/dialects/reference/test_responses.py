"""`POST /v1/responses` with the OpenAI SDK, whose strict mode checks every answer against its types."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from mesh.errors import Unavailable

TEMPLATE = (
    "{# </think> #}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning %}({{ m.reasoning }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
)
ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALL = b'<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SAME = {"x-request-id": "same"}


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def prompt_of(core: Any, number: int = -1) -> str:
    return bytes(token for token in core.streams[number].choice.prompt if token < 256).decode()


async def post(url: str, body: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}/v1/responses", json=body)


async def test_a_response_is_answered_whole(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.responses.create(model="tiny", input="hi", instructions="Be brief.", temperature=0.5)
    assert (answer.output_text, answer.status, answer.error, answer.store) == ("hello world", "completed", None, False)
    (item,) = answer.output
    assert item.type == "message" and item.status == "completed" and item.id.startswith("msg_")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(core.streams[0].choice.prompt), 12)
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert (answer.instructions, answer.temperature, answer.model) == ("Be brief.", 0.5, "tiny")
    assert (answer.created_at, answer.completed_at) == (1_700_000_000, 1_700_000_000)
    assert prompt_of(core) == "Be brief.hi"
    assert answer.model_extra["system_fingerprint"] == "f00d"


async def test_the_events_of_a_stream_come_in_order_and_are_numbered(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"<think>hm</think>A " + CALL + b"\nB"
    stream = await client.responses.create(model="tiny", input="hi", tools=[ADD], stream=True)
    events: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    once = [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]]
    part = ["output_item.added", "content_part.added"]
    assert once == [
        "created",
        "in_progress",
        *[*part, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"],
        *[*part, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"],
        "output_item.added",
        *["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        *[*part, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"],
        "completed",
    ]
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2, 3]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == {"a": 1} and len(deltas) > 3
    assert events[0].response.status == "in_progress" and events[0].response.output == []


async def test_streamed_and_whole_responses_are_equal(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"<think>so so</think>Wait " + CALL
    arguments: Any = {"model": "tiny", "input": "hi", "tools": [ADD], "extra_headers": SAME}
    whole = await client.responses.create(**arguments)
    async with client.responses.stream(**arguments) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    dumped = [item.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for item in streamed.output]
    for item in dumped:
        for part in item.get("content", ()):
            part.pop("parsed", None)
    assert dumped == [item.model_dump(exclude_none=True) for item in whole.output]
    assert streamed.usage == whole.usage and streamed.id == whole.id == "resp_same"
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]


async def test_the_output_of_a_response_may_stand_in_the_next_input(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"<think>plus</think>Wait " + CALL
    first = await client.responses.create(model="tiny", input="hi", tools=[ADD])
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 1}
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "2"}]
    core.reply = b"It is 2"
    second = await client.responses.create(model="tiny", input=items, tools=[ADD])
    assert second.output_text == "It is 2"
    wrote = '(plus)Wait <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert prompt_of(core).endswith(f"hi{wrote}<|tool|>2")


async def test_system_and_developer_messages_in_front_become_one(client: openai.AsyncOpenAI, core: Any) -> None:
    items: Any = [{"role": "developer", "content": "B"}, {"role": "system", "content": "C"}]
    items += [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    await client.responses.create(model="tiny", input=items, instructions="A")
    assert prompt_of(core) == "A\n\nB\n\nCxyz"


async def test_a_schema_becomes_the_form_of_the_answer(client: openai.AsyncOpenAI, core: Any) -> None:
    class Sum(openai.BaseModel):
        total: int

    core.reply = b'{"total": 3}'
    answer = await client.responses.parse(model="tiny", input="hi", text_format=Sum)
    assert answer.output_parsed == Sum(total=3)
    assert "total" in core.streams[0].choice.sampling.grammar
    await client.responses.create(model="tiny", input="hi")
    assert core.streams[1].choice.sampling.grammar == "", "negative control"


async def test_tool_choice_forces_a_call_in_the_form_of_responses(client: openai.AsyncOpenAI, core: Any) -> None:
    choice: Any = {"type": "function", "name": "add"}
    answer = await client.responses.create(model="tiny", input="hi", tools=[ADD], tool_choice=choice)
    assert "add" in core.streams[0].choice.sampling.grammar
    assert answer.tool_choice.model_dump() == choice  # type: ignore[union-attr]
    assert answer.tools[0].model_dump(exclude_none=True) == ADD
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    more: Any = {"type": "function", "name": "other", "parameters": None, "strict": None}
    await client.responses.create(model="tiny", input="hi", tools=[ADD, more], tool_choice=allowed)
    assert "other" not in prompt_of(core)


async def test_an_answer_that_is_cut_off_is_incomplete(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tiny", input="hi", max_output_tokens=5)
    assert (answer.status, answer.output_text) == ("incomplete", "hello")
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    stream = await client.responses.create(model="tiny", input="hi", max_output_tokens=5, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.incomplete" and last.response.output[0].status == "incomplete"


async def test_logprobs_come_with_deltas_and_the_whole_text(client: openai.AsyncOpenAI) -> None:
    arguments: Any = {"model": "tiny", "input": "hi", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    whole: Any = await client.responses.create(**arguments)
    entries = whole.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries[:11]) == "hello world" and len(entries[0].top_logprobs) == 2
    events: list[Any] = [event async for event in await client.responses.create(stream=True, **arguments)]
    deltas = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.token for entry in deltas] == [entry.token for entry in entries]
    assert [len(event.logprobs) for event in events if event.type == "response.output_text.done"] == [len(entries)]


async def test_fields_without_effect_are_named(url: str) -> None:
    body = {
        "input": [{"role": "user", "content": "hi", "mood": "good"}],
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "user": "me",
    }
    answer = await post(url, body)
    assert answer.status_code == 200 and "data: " not in answer.text
    assert set(answer.headers["x-baton-ignored"].split(", ")) == {
        "input.mood",
        "reasoning.summary",
        "text.verbosity",
        "include.reasoning.encrypted_content",
        "max_tool_calls",
        "user",
    }
    assert "x-baton-ignored" not in (await post(url, {"input": "hi", "store": False})).headers


async def test_effort_switches_the_reasoning_of_the_template(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.responses.create(model="tiny", input="hi", reasoning={"effort": "none"})
    await client.responses.create(model="tiny", input="hi", reasoning={"effort": "high"})
    await client.responses.create(model="tiny", input="hi")
    assert [prompt_of(core, number) for number in (0, 1, 2)] == ["hi[False]", "hi[True]", "hi"]


USER: Any = {"role": "user", "content": "hi"}
BAD_TOOL = ADD | {"strict": True, "parameters": {"type": "object", "not": {}}}


REFUSED: Any = [
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": {"id": "c"}}, "conversation"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"type": {}, "role": "user", "content": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "x", "output": "1"}]}, "input[1].call_id"),
    (
        {"input": [USER, {"type": "function_call", "call_id": "x", "name": "f", "arguments": "["}]},
        "input[1].arguments",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [ADD | {"name": "a b"}]}, "tools[0].name"),
    ({"tools": [BAD_TOOL]}, "tools[0].parameters.not"),
    ({"tool_choice": {"type": "function", "name": "no"}, "tools": [ADD]}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
        "text.format.schema.not",
    ),
    ({"temperature": -1}, "temperature"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": 5000}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"n": 2}, "n"),
    ({"messages": [USER]}, "messages"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"model": "other"}, "model"),
]


async def test_what_cannot_be_honoured_is_refused_by_name(url: str, core: Any) -> None:
    for fields, param in REFUSED:
        answer = await post(url, {"input": "hi"} | fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (404 if param == "model" else 400, param), fields
        assert param.partition(".")[0].partition("[")[0] in error["message"]
    assert core.streams == []


async def test_an_error_before_the_first_token_is_an_ordinary_answer(url: str, core: Any) -> None:
    core.fail_at = {0: Unavailable("no worker")}
    answer = await post(url, {"input": "hi", "stream": True})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no worker")


async def test_an_error_in_mid_stream_is_the_event_that_the_response_failed(
    client: openai.AsyncOpenAI, url: str, core: Any
) -> None:
    core.fail_at = {4: Unavailable("the worker is gone")}
    events: list[Any] = [event async for event in await client.responses.create(model="tiny", input="hi", stream=True)]
    assert events[-1].type == "response.failed"
    response = events[-1].response
    assert (response.status, response.error.code, response.error.message) == (
        "failed",
        "server_error",
        "the worker is gone",
    )
    assert response.output[0].content[0].text == "hell" and response.output[0].status == "incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    answer = await post(url, {"input": "hi", "stream": True})
    assert answer.text.endswith("\n\ndata: [DONE]\n\n")


async def test_a_long_input_is_parsed_elsewhere_and_refused_by_its_name(url: str, core: Any) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hello " * 20}]} for _ in range(12_000)]
    answer = await post(url, {"input": items})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["param"] == "input" and core.streams == []
