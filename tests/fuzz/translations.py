"""Fuzz targets of the other chat APIs: bodies that are translated, and answers that are rendered as events.

A body is refused with a field that it has, or becomes a chat of the shape that validation expects. The events of an
answer put its text, reasoning and calls together again, whatever order they come in."""

import json
from random import Random
from typing import Any, cast

import msgspec

from gateway.answers.events import Delta
from gateway.dialects.anthropic.reply import MessagesReply
from gateway.dialects.anthropic.request import translate as translate_message
from gateway.dialects.anthropic.types import MessagesRequest
from gateway.dialects.responses.events import OutputItems, ResponseEvents
from gateway.dialects.responses.request import translate as translate_response
from gateway.dialects.responses.types import ResponsesRequest
from gateway.dialects.translation.parts import AnswerParts, Happened, PartKind
from gateway.dialects.translation.reading import Ignored
from gateway.text.tool_calls import ToolCall
from mesh.errors import InvalidRequest

WORDS = ("", "x", "call_1", "\u2028", "data: x\n\n", '"}', "</think>", "😀", "{}", '{"a": 1}', "[")
KINDS = (
    "text input_text output_text refusal tool_use tool_result thinking redacted_thinking image message reasoning "
    "function_call function_call_output item_reference function custom any auto tool none json_schema enabled"
).split()
ROLES = ("user", "assistant", "system", "developer", "tool", 7)
MEMBERS = (
    "type role content text id name input call_id tool_use_id arguments output summary thinking signature is_error "
    "parameters input_schema strict format schema effort display budget_tokens edits keep refusal data"
).split()


def translations(rng: Random) -> None:
    if rng.random() < 0.5:
        names, kind = (
            ("input", "instructions", "text", "tools", "tool_choice", "reasoning", "include"),
            ResponsesRequest,
        )
    else:
        names = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "context_management")
        kind = MessagesRequest
    fields = {name: _value(rng, 0) for name in names if rng.random() < 0.6}
    fields[names[0]] = [_item(rng) for _ in range(rng.randrange(5))]
    try:
        body = msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return
    ignored = Ignored()
    try:
        translate: Any = translate_response if kind is ResponsesRequest else translate_message
        chat = translate(body, ignored).chat.body
    except InvalidRequest as error:
        assert error.field is not None and error.field.partition(".")[0].partition("[")[0] in kind.__struct_fields__
        return
    for message in chat.messages:
        assert isinstance(message["content"], str) and message["role"] in ("system", "user", "assistant", "tool")
        assert all(isinstance(call["function"]["arguments"], dict) for call in message.get("tool_calls", ()))
    assert all(tool["type"] == "function" for tool in chat.tools)
    assert not any("[" in name.partition(".")[0] for name in ignored)


def answer_events(rng: Random) -> None:
    deltas, calls = list[Delta](), 0
    for _ in range(rng.randrange(12)):
        pieces = list[ToolCall]()
        if deltas and deltas[-1].calls and rng.random() < 0.5:
            last = deltas[-1].calls[-1]
            pieces.append(ToolCall(last.index, last.id, "", rng.choice(WORDS), later=True))
        for _ in range(rng.choice((0, 0, 1, 2))):
            pieces.append(ToolCall(calls, f"call_{calls}", "add", rng.choice(WORDS)))
            calls += 1
        text, reasoning = rng.choice(WORDS), rng.choice(WORDS)
        deltas.append(Delta(0, (), "" if pieces else text, "", tuple(pieces), "" if pieces or text else reasoning))
    _check_responses(deltas)
    _check_messages(deltas)


def _check_responses(deltas: list[Delta]) -> None:
    items, parts = OutputItems("x", with_logprobs=False), AnswerParts()
    events, raw = ResponseEvents(items), b""
    for step in [step for delta in deltas for step in parts.add(delta)] + list(parts.finish()):
        if step.what is Happened.BEGAN:
            raw += b"".join(events.begun(step.part))
        elif step.what is Happened.GREW:
            raw += events.delta(step.text, b"[]" if step.part.kind is PartKind.TEXT else None)
        else:
            raw += b"".join(events.ended(step.part, complete=True))
    found = _read(raw)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for part in parts.parts:
        mine = [event for event in found if event["output_index"] == part.index]
        assert "".join(event["delta"] for event in mine if event["type"].endswith(".delta")) == part.text
        assert mine[-1]["type"] == "response.output_item.done"
    _check_all_is_there(deltas, parts)


def _check_messages(deltas: list[Delta]) -> None:
    reply = MessagesReply(
        cast(Any, None), request_id="x", stream=True, model="m", shows_thinking=True, fills_context=False
    )
    parts, raw = AnswerParts(), b""
    for step in [step for delta in deltas for step in parts.add(delta)] + list(parts.finish()):
        raw += reply.frame(step)
    texts, open_index = dict[int, str](), -1
    for event in _read(raw):
        if event["type"] == "content_block_start":
            assert open_index == -1 and event["index"] == len(texts)
            open_index, texts[event["index"]] = event["index"], ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
            if event["delta"]["type"] != "signature_delta":
                texts[open_index] += next(value for key, value in event["delta"].items() if key != "type")
        elif event["type"] == "content_block_stop":
            open_index = -1
    assert texts == {part.index: part.text for part in parts.parts} and open_index == -1


def _check_all_is_there(deltas: list[Delta], parts: AnswerParts) -> None:
    def joined(kind: PartKind) -> str:
        return "".join(part.text for part in parts.parts if part.kind is kind)

    assert joined(PartKind.TEXT) == "".join(delta.text for delta in deltas)
    assert joined(PartKind.REASONING) == "".join(delta.reasoning for delta in deltas)
    assert joined(PartKind.CALL) == "".join(call.arguments for delta in deltas for call in delta.calls)


def _read(raw: bytes) -> list[Any]:
    """The data of all events; each has the type of its data."""
    found = list[Any]()
    for event in raw.decode().removesuffix("\n\n").split("\n\n"):
        kind, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def _item(rng: Random) -> Any:
    """A member of a list of messages or items, more often right than wrong."""
    content: Any = rng.choice(WORDS)
    if rng.random() < 0.6:
        content = [_block(rng) for _ in range(rng.randrange(4))]
    item = {"role": rng.choice(ROLES), "content": content}
    return item if rng.random() < 0.6 else _block(rng) if rng.random() < 0.8 else {}


def _block(rng: Random) -> Any:
    texts = {name: rng.choice(WORDS) for name in ("text", "thinking", "call_id", "tool_use_id", "id", "name")}
    block: dict[str, Any] = {"type": rng.choice(KINDS), **texts, "arguments": "{}", "output": "x", "input": {}}
    for name in rng.sample(MEMBERS, rng.randrange(3)):
        block[name] = _value(rng, 2)
    return block


def _value(rng: Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        names = rng.sample(MEMBERS, rng.randrange(5))
        return {name: rng.choice(KINDS) if name == "type" else _value(rng, depth + 1) for name in names}
    return (rng.choice(WORDS), rng.randrange(-2, 9), True, None, rng.choice(KINDS))[kind]
