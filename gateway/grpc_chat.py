"""Conversations of baton.inference.v1 as chat templates take them: messages, tools, and the calls among them.

The checks are those of the HTTP door; errors name fields as this door spells them."""

import json
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.assets import Assets
from gateway.calls import Call
from gateway.openai_ask import chat_ids
from gateway.tools import declared, names_of
from mesh.errors import ContextTooLong, InvalidRequest

Json = dict[str, Any]
_PLAIN = ("role", "content", "name", "tool_call_id")
_SPELLED = (
    ("chat_template_kwargs", "template_arguments_json"),
    (".function.arguments", ".arguments_json"),
    (".function.parameters", ".parameters_json"),
    (".function", ""),
)


async def chat_prompt(chat: pb.Chat, assets: Assets) -> tuple[tuple[int, ...], frozenset[str]]:
    """Token ids, and the names of the tools whose calls are to be read."""
    generation = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    arguments = _object(chat.template_arguments_json, "chat.template_arguments_json")
    tools = [_tool(tool, f"chat.tools[{index}]") for index, tool in enumerate(chat.tools)]
    try:
        checked = declared(tools, None)
        ids = await chat_ids(assets, [_message(message) for message in chat.messages], generation, arguments, checked)
    except (ContextTooLong, InvalidRequest) as error:
        raise type(error)(f"chat.{_ours(error.field or '')}", _ours(error.message)) from error
    return ids, names_of(checked)


def tool_call(call: Call) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)


def _message(message: pb.ChatMessage) -> Json:
    plain: Json = {field.name: value for field, value in message.ListFields() if field.name in _PLAIN}
    if not message.tool_calls:
        return plain
    return plain | {
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    }


def _tool(tool: pb.Tool, where: str) -> Json:
    function: Json = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    function["parameters"] = _object(tool.parameters_json, f"{where}.parameters_json")
    return {"type": "function", "function": function}


def _object(text: str, where: str) -> Json:
    try:
        found = json.loads(text or "{}")
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(where, f"{where} must be a JSON object: {error}") from error
    return found


def _ours(text: str) -> str:
    for theirs, ours in _SPELLED:
        text = text.replace(theirs, ours)
    return text
