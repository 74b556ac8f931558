"""Chats of baton.inference.v1 in the shape that chat templates take: messages, tools, and the calls among them.

gateway/text/prompt.py validates them as it validates chats over HTTP; CHAT_FIELDS makes its errors name fields of this
API."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.lengths import validate_length
from gateway.text.prompt import ChatPrompt
from gateway.text.tool_calls import ToolCall
from gateway.text.tools import MAX_TOOLS, ChatFields
from mesh.errors import InvalidRequest

Json = dict[str, Any]
CHAT_FIELDS = ChatFields(
    messages="chat.messages",
    tools="chat.tools",
    template_arguments="chat.template_arguments_json",
    function="",  # a tool and a call have their name themselves
    arguments="arguments_json",
    parameters="parameters_json",
)
_TEXT_FIELDS = ("role", "content", "name", "tool_call_id")
_SLICE = 500  # messages that are converted in one piece
MOST_JSON_CHARACTERS = 1_000_000  # parsing so many takes some ten milliseconds, in one piece


async def parse_conversation(chat: pb.Chat, most: int) -> ChatPrompt:
    """`most`: tokens of the model's context. Whatever a client can repeat is counted before it is converted."""
    if len(chat.messages) > most:  # a message is at least one token
        validate_length(CHAT_FIELDS.messages, len(chat.messages), most)
    _limit(CHAT_FIELDS.tools, chat.tools)
    messages = list[Json]()
    for index, message in enumerate(chat.messages):
        messages.append(_message(message, CHAT_FIELDS.message(index)))
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return ChatPrompt(
        messages=messages,
        tools=[_tool(tool, CHAT_FIELDS.tool(index)) for index, tool in enumerate(chat.tools)],
        template_arguments=_object(chat.template_arguments_json, CHAT_FIELDS.template_arguments),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
    )


def tool_call(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)


def _message(message: pb.ChatMessage, path: str) -> Json:
    _limit(f"{path}.tool_calls", message.tool_calls)
    found: Json = {field.name: value for field, value in message.ListFields() if field.name in _TEXT_FIELDS}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return found


def _tool(tool: pb.Tool, path: str) -> Json:
    function: Json = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    function["parameters"] = _object(tool.parameters_json, f"{path}.parameters_json")
    return {"type": "function", "function": function}


def _limit(path: str, values: Sequence[Any]) -> None:
    if len(values) > MAX_TOOLS:
        raise InvalidRequest(path, f"{path} has {len(values)} entries; at most {MAX_TOOLS} are allowed")


def _object(text: str, path: str) -> Json:
    if len(text) > MOST_JSON_CHARACTERS:
        what = f"{path} has {len(text)} characters; at most {MOST_JSON_CHARACTERS} are allowed"
        raise InvalidRequest(path, what)
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(path, f"{path} must be a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(path, f"{path} must be a JSON object; it is {type(found).__name__}")
    return found
