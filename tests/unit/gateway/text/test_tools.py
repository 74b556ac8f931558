"""Tools through both front doors: declared to the template, called in the answer, refused where they cannot work."""

import json
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from baton.inference.v1 import inference_pb2 as pb
from gateway.text.chat import ChatTemplate
from gateway.text.tools import tool_support
from tests.unit.gateway.public_grpc import details_of

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = b'<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
HI: Any = [{"role": "user", "content": "hi"}]
CALLED: Any = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def test_a_call_comes_whole_with_its_finish_reason(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = b"Wait. " + CALL
    answer = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD])
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Wait. ", "tool_calls")
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 1}
    assert bytes(token for token in core.streams[0].choice.prompt if token < 256).startswith(json.dumps(ADD).encode())


async def test_a_streamed_call_is_the_whole_one_and_none_of_its_text_leaks(
    client: openai.AsyncOpenAI, core: Any
) -> None:
    core.reply = CALL + b"\n" + CALL
    arguments: Any = {"model": "tiny", "messages": HI, "tools": [ADD], "extra_headers": {"x-request-id": "same"}}
    whole = (await client.chat.completions.create(**arguments)).choices[0]
    text, calls, reasons = "", [], []
    async for chunk in await client.chat.completions.create(stream=True, **arguments):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        calls += choice.delta.tool_calls or []
        reasons.append(choice.finish_reason)
    assert (text, whole.message.content, reasons[-1]) == ("", None, "tool_calls")
    begun = [call for call in calls if call.id is not None]
    assert [(call.index, call.type, call.function.name) for call in begun] == [
        (0, "function", "add"),
        (1, "function", "add"),
    ]
    assert [call.id for call in begun] == [call.id for call in whole.message.tool_calls or []]
    assert len({call.id for call in begun}) == 2
    assert len(calls) > len(begun) + 10  # the arguments grow
    for index in (0, 1):
        pieces = [call.function.arguments for call in calls if call.index == index]
        assert json.loads("".join(pieces)) == {"a": 1}


async def test_a_tool_with_strict_is_taken_and_shown_without_the_word(client: openai.AsyncOpenAI, core: Any) -> None:
    strict = {"type": "function", "function": ADD["function"] | {"strict": True}}
    await client.chat.completions.create(model="tiny", messages=HI, tools=[strict])
    assert bytes(token for token in core.streams[0].choice.prompt if token < 256).startswith(json.dumps(ADD).encode())


async def test_only_allowed_tools_are_shown_and_called(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = CALL
    more = {"type": "function", "function": {"name": "other"}}
    choice: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
    }
    answer = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD, more], tool_choice=choice)
    assert answer.choices[0].message.content == CALL.decode()
    assert b"add" not in bytes(token for token in core.streams[0].choice.prompt if token < 256)


async def test_without_parallel_calls_the_answer_ends_with_the_first(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = CALL + b"\n" + CALL
    answer = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    assert core.streams[0].cancelled


@pytest.mark.parametrize("more", [{}, {"tools": [ADD], "tool_choice": "none"}])
async def test_a_client_that_offers_no_tools_gets_text(client: openai.AsyncOpenAI, core: Any, more: Any) -> None:
    core.reply = CALL
    answer = await client.chat.completions.create(model="tiny", messages=HI, **more)
    assert answer.choices[0].message.content == CALL.decode()
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].finish_reason == "stop"
    assert b"function" not in bytes(token for token in core.streams[0].choice.prompt if token < 256)


async def test_a_call_that_is_cut_off_stays_text(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = CALL
    answer = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD], max_tokens=20)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALL[:20].decode(), "length")


async def test_earlier_calls_and_results_reach_the_template(client: openai.AsyncOpenAI, core: Any) -> None:
    messages: Any = [
        *HI,
        CALLED,
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    await client.chat.completions.create(model="tiny", messages=messages, tools=[ADD])
    prompt = bytes(token for token in core.streams[0].choice.prompt if token < 256)
    assert CALL in prompt and prompt.endswith(b"<|tool|>2")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tools": [{"function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": "often"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"),
        ({"messages": [*HI, {"role": "tool", "content": "2", "tool_call_id": 9}]}, "messages[1].tool_call_id"),
    ],
)
async def test_tools_that_cannot_be_honoured_are_refused_by_field(
    client: openai.AsyncOpenAI, core: Any, fields: Any, field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**{"model": "tiny", "messages": HI} | fields)
    assert refused.value.param == field and field in refused.value.message
    assert core.streams == []


async def test_calls_over_grpc_are_the_same(stub: Any, core: Any) -> None:
    core.reply = CALL
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=[pb.Tool(name="add")])
    first = await stub.Generate(pb.GenerateRequest(chat=chat))
    (choice,) = first.choices
    (call,) = choice.tool_calls
    assert (call.name, json.loads(call.arguments_json), choice.text) == ("add", {"a": 1}, "")
    assert choice.finished.reason == pb.FINISH_REASON_TOOL_CALLS
    assert len(choice.token_ids) == len(CALL) + 1

    chat.messages.add(role="assistant", tool_calls=[call])
    chat.messages.add(role="tool", content="2", tool_call_id=call.id)
    core.reply = b"two"
    second = await stub.Generate(pb.GenerateRequest(chat=chat))
    assert second.choices[0].text == "two"
    assert second.choices[0].finished.reason == pb.FINISH_REASON_STOP
    assert CALL in bytes(token for token in core.streams[-1].choice.prompt if token < 256)


async def test_an_answer_that_is_continued_after_its_call_still_ends_with_tool_calls(stub: Any, core: Any) -> None:
    core.reply = CALL + b"\nok"
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=[pb.Tool(name="add")])
    request = pb.GenerateRequest(chat=chat, sampling=pb.SamplingOptions(seed=1))
    request.emitted.add(index=0, token_ids=list(CALL))
    (choice,) = (await stub.Generate(request)).choices
    assert (choice.text, len(choice.tool_calls)) == ("ok", 0)
    assert choice.finished.reason == pb.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize(
    ("tool", "call", "field"),
    [
        (pb.Tool(name="add", parameters_json="["), None, "chat.tools[0].parameters_json"),
        (pb.Tool(name="a b"), None, "chat.tools[0].name"),
        (pb.Tool(name="add", parameters_json="[]"), None, "chat.tools[0].parameters_json"),
        (
            pb.Tool(name="add"),
            pb.ToolCall(name="add", arguments_json="1"),
            "chat.messages[0].tool_calls[0].arguments_json",
        ),
    ],
)
async def test_grpc_names_its_own_fields(stub: Any, tool: pb.Tool, call: pb.ToolCall | None, field: str) -> None:
    message = pb.ChatMessage(role="assistant", content="x", tool_calls=[call] if call else [])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[message], tools=[tool])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details_of(refused.value)["BadRequest"].field_violations
    assert violation.field == field and field in violation.description


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (TEMPLATE, None),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "has no place for tools"),
        ("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}", "in a form that is not read here"),
        ("{{ tools | tojson }}{{ messages | tojson }}", "in a form that is not read here"),
        ("{{ raise_exception('no system') }}", "no system"),
    ],
)
def test_a_template_is_probed_for_tools(template: str, reason: str | None) -> None:
    _, found = tool_support(ChatTemplate(template, {}))
    assert found == reason if reason is None else reason in (found or "")
