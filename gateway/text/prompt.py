"""A client's prompt as token ids: chat messages go through the model's template, text through its tokenizer.

Step 1 of a request's life, for both front doors. An error names the field as the client's front door spells it:
`ChatFields` holds each front door's spelling. Long chats and texts are rendered and tokenized off the event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.lengths import validate_length
from gateway.text.assets import Assets
from gateway.text.tools import ChatFields, tool_names, validate_earlier_calls, validate_tool_results, validate_tools
from mesh.errors import ContextTooLong, InvalidRequest, brief

Json = dict[str, Any]
LONG_CHARACTERS = 4096  # tokenizing or rendering these takes some milliseconds
LONG_CHAT = 64  # rendering a chat of so many messages takes some milliseconds
DENSE = 8  # most texts have fewer characters for each token
MARGIN = 64  # tokens that may change where a text is cut
ROLES = ("system", "developer", "user", "assistant", "tool")
RESERVED = {"messages", "add_generation_prompt", "tools", "documents"}  # template variables that are set here


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as a front door has parsed it, in the shape that templates take; not validated yet."""

    messages: Sequence[Json]
    tools: Sequence[Any] = ()
    tool_choice: Any = None
    template_arguments: Json | None = None
    add_generation_prompt: bool = True


async def encode_chat(assets: Assets, chat: ChatPrompt, fields: ChatFields) -> tuple[tuple[int, ...], frozenset[str]]:
    """Token ids of a chat, and the names of the tools whose calls are to be read from the answer."""
    rendered = partial(_rendered, assets, chat, fields)
    text, tools = await asyncio.to_thread(rendered) if _is_long(chat) else rendered()
    return await encode_text(assets, text, field=fields.messages, special=False), tools


def _is_long(chat: ChatPrompt) -> bool:
    contents = [message.get("content") for message in chat.messages[: LONG_CHAT + 1]]
    plain = all(isinstance(content, str | None) for content in contents)
    long = sum(len(content or "") for content in contents) > LONG_CHARACTERS if plain else True
    return len(contents) > LONG_CHAT or long or bool(chat.tools or chat.template_arguments)


def _rendered(assets: Assets, chat: ChatPrompt, fields: ChatFields) -> tuple[str, frozenset[str]]:
    """The text of a valid chat, and the names of its tools."""
    messages, arguments = chat.messages, dict(chat.template_arguments or {})
    tools = validate_tools(chat.tools, chat.tool_choice, fields)
    if assets.template is None:
        raise InvalidRequest(fields.messages, f"model {assets.name!r} has no chat template; send a prompt instead")
    if not messages:
        raise InvalidRequest(fields.messages, f"{fields.messages} needs at least one message")
    if len(messages) > assets.context_tokens:  # a message is at least one token
        validate_length(fields.messages, len(messages), assets.context_tokens)
    if reserved := RESERVED & set(arguments):
        name = fields.template_arguments
        raise InvalidRequest(name, f"{name} must not set {min(reserved)}: the gateway sets it")
    valid = [_validate_message(message, fields, index) for index, message in enumerate(messages)]
    validate_tool_results(valid, fields)
    if assets.why_no_tools is not None and (tools or any(message.get("tool_calls") for message in valid)):
        name = fields.tools if tools else fields.messages
        raise InvalidRequest(name, f"{name} must not use tools: model {assets.name!r} cannot; {assets.why_no_tools}")
    if tools:
        arguments["tools"] = list(tools)
    text = assets.template.render(
        valid,
        add_generation_prompt=chat.add_generation_prompt,
        arguments=arguments,
        field=fields.messages,
    )
    return text, tool_names(tools)


async def encode_text(assets: Assets, text: str, *, field: str, special: bool) -> tuple[int, ...]:
    """Token ids of a text. A text that fits into no context is refused before it is tokenized, because tokenizing takes
    a hundred times its memory. `special`: add the tokens that the model expects around plain text."""
    if len(text) > assets.tokenizer.most_characters(assets.context_tokens):
        raise ContextTooLong(
            field,
            f"{field} has {len(text)} characters; the model's context of {assets.context_tokens} tokens cannot hold "
            f"so many; shorten {field}",
        )
    if len(text) < LONG_CHARACTERS:
        return assets.tokenizer.encode(text, special=special)
    return await asyncio.to_thread(_encode_long, assets, text, field=field, special=special)


def _encode_long(assets: Assets, text: str, *, field: str, special: bool) -> tuple[int, ...]:
    """Tokenize the text, or only its beginning where that is longer than the context already."""
    first, context = DENSE * assets.context_tokens, assets.context_tokens
    while first < len(text):
        tokens = len(assets.tokenizer.encode(text[:first], special=special)) - MARGIN
        if tokens > context:
            what = f"the first {first} characters of {field} alone have about {tokens} tokens"
            raise ContextTooLong(field, f"{what}; the model's context is {context}, the answer included: shorten it")
        first *= 4
    return assets.tokenizer.encode(text, special=special)


def _validate_message(message: Json, fields: ChatFields, index: int) -> Json:
    """The message as templates expect it: a known role, content as one text, arguments of calls as objects."""
    path = fields.message(index)
    if message.get("role") not in ROLES:
        raise InvalidRequest(f"{path}.role", f"{path}.role must be one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, f"{path}.content[{at}]") for at, part in enumerate(content))
    if content is None and (message["role"] != "assistant" or not message.get("tool_calls")):
        raise InvalidRequest(f"{path}.content", f"{path}.content is missing")
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{path}.content", f"{path}.content must be text or a list of text parts")
    valid = message | {"content": content}
    return validate_earlier_calls(valid, fields, index) if valid.get("tool_calls") else valid


def _part_text(part: Any, path: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("text", "input_text"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequest(f"{path}.type", f"{path}.type is {brief(repr(kind))}; only text is supported")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{path}.text", f"{path}.text must be text")
    return str(part["text"])
