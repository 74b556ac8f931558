"""Chats of baton.inference.v1 in the shape that chat templates take: messages, documents, and the calls among them.

gateway/prompts/prompt.py validates them as it validates chats over HTTP; CHAT_FIELDS makes its errors name fields of
this API."""

import asyncio
from collections.abc import Sequence
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.tools import limit, tool_choice_of, tool_of
from gateway.prompts.lengths import validate_length
from gateway.prompts.prompt import ChatPrompt
from gateway.text.json_text import parse_json_object
from gateway.text.tools import ChatFields

Json = dict[str, Any]
CHAT_FIELDS = ChatFields(
    messages="chat.messages",
    tools="chat.tools",
    template_arguments="chat.template_arguments_json",
    function="",  # a tool and a call have their name themselves
    arguments="arguments_json",
    parameters="parameters_json",
)
# Fields of a chat that gateway/prompts/prompt.py names as HTTP does.
OTHER_FIELDS = {"continue_final_message": "chat.continue_final_message", "chat_template": "chat.template"}
_TEXT_FIELDS = ("role", "content", "name", "tool_call_id", "reasoning")
_SLICE = 500  # messages that are converted in one piece


async def parse_conversation(chat: pb.Chat, most: int, *, special: bool) -> ChatPrompt:
    """`most`: tokens of the model's context. `special`: add the model's special tokens around the prompt. Whatever a
    client can repeat is counted before it is converted."""
    if len(chat.messages) > most:  # a message is at least one token
        validate_length(CHAT_FIELDS.messages, len(chat.messages), most)
    limit(CHAT_FIELDS.tools, chat.tools)
    messages = list[Json]()
    for index, message in enumerate(chat.messages):
        messages.append(_message(message, CHAT_FIELDS.message(index)))
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return ChatPrompt(
        messages=messages,
        tools=[tool_of(tool, CHAT_FIELDS.tool(index)) for index, tool in enumerate(chat.tools)],
        tool_choice=tool_choice_of(chat),
        template_arguments=parse_json_object(chat.template_arguments_json, CHAT_FIELDS.template_arguments),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None,
        continue_final_message=chat.continue_final_message,
        documents=await _documents(chat.documents_json),
        template=chat.template if chat.HasField("template") else None,
        reasoning_effort=chat.reasoning_effort if chat.HasField("reasoning_effort") else None,
        parallel_calls=chat.parallel_tool_calls if chat.HasField("parallel_tool_calls") else True,
        special=special,
    )


async def _documents(texts: Sequence[str]) -> list[Json] | None:
    found = list[Json]()
    for index, text in enumerate(texts):
        found.append(parse_json_object(text, f"chat.documents_json[{index}]"))
        await asyncio.sleep(0)
    return found or None


def _message(message: pb.ChatMessage, path: str) -> Json:
    limit(f"{path}.tool_calls", message.tool_calls)
    found: Json = {field.name: value for field, value in message.ListFields() if field.name in _TEXT_FIELDS}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return found
