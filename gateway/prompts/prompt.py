"""A client's prompt as token ids: chat messages go through the model's template, text through its tokenizer.

Step 1 of a request's life, for both front doors. An error names the field as the client's front door spells it:
`ChatFields` holds each front door's spelling. Long chats and texts are rendered and tokenized off the event loop.
A text of a client becomes no control token in a chat; a prompt that is one text may hold control tokens, because the
client writes the whole of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.prompts.assets import Assets
from gateway.prompts.conversation import ValidChat, render_chat, render_own, too_long
from gateway.prompts.lengths import validate_length
from gateway.prompts.roles import check_own_roles, uncertain, validate_role
from gateway.text.chat import DEVELOPER, ChatTemplate
from gateway.text.formats import HERMES
from gateway.text.templates import TOOL_USE
from gateway.text.tool_calls import AnswerFormat
from gateway.text.tool_choice import OfferedTools
from gateway.text.tools import (
    ChatFields,
    shown_tools,
    validate_earlier_calls,
    validate_reasoning,
    validate_tools,
)
from mesh.errors import ContextTooLong, InvalidRequest, brief

Json = dict[str, Any]
LONG_CHARACTERS = 4096  # tokenizing or rendering these takes some milliseconds
LONG_CHAT = 64  # rendering a chat of this number of messages takes some milliseconds
DENSE = 8  # most texts have fewer characters for each token
MARGIN = 64  # tokens that may change where a text is cut
RESERVED = {"messages", "add_generation_prompt", "tools", "documents"}  # template variables that are set here
_UNTHINKING = ("none", "minimal")  # values of reasoning_effort with which a model that can choose does not think
SWITCHES = ("enable_thinking", "thinking")  # variables by which templates switch the model's reasoning


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as a front door has parsed it, in the shape that templates take; not validated yet."""

    messages: Sequence[Json]
    tools: Sequence[Any] = ()
    tool_choice: Any = None
    template_arguments: Json | None = None
    add_generation_prompt: bool | None = None  # None: unless the last message is continued
    continue_final_message: bool = False
    documents: Sequence[Any] | None = None
    template: str | None = None  # the client's own template, or the name of one of the model's
    reasoning_effort: str | None = None
    parallel_calls: bool = True
    special: bool = False  # add the tokens that the model expects around plain text; templates have them already


async def encode_chat(assets: Assets, chat: ChatPrompt, fields: ChatFields) -> tuple[tuple[int, ...], AnswerFormat]:
    """Token ids of a chat, and how its answers are to be read."""
    long = len(chat.messages) > LONG_CHAT or _size(chat, LONG_CHARACTERS) > LONG_CHARACTERS
    valid, template, use = (
        await asyncio.to_thread(_prepare, assets, chat, fields) if long else _prepare(assets, chat, fields)
    )
    if template is None:
        assert chat.template is not None, "without a template of the model there is one of the client"
        ids, begun = await render_own(assets, valid, chat.template)
    elif long:
        ids, begun = await asyncio.to_thread(render_chat, assets, valid, template)
    else:
        ids, begun = render_chat(assets, valid, template)
    if chat.special:
        before, behind = assets.tokenizer.around
        ids = (*before, *ids, *behind)
    reading = AnswerFormat(use=use, tools=assets.tool_format or HERMES, reasoning=assets.reasoning)
    return ids, replace(reading, reasoning_begun=begun)


def _size(chat: ChatPrompt, most: int) -> int:
    return size_of([chat.messages, chat.tools, chat.template_arguments, chat.documents], most)


def size_of(given: Sequence[Any], most: int) -> int:
    """Characters that the client has sent, counted until there are more than `most`."""
    size, values = 0, list(given)
    while values and size <= most:
        value = values.pop()
        size += len(value) if isinstance(value, str) else 1
        if isinstance(value, dict):
            values += (*value, *value.values())
        elif isinstance(value, list | tuple):
            values += value
    return size


def _prepare(
    assets: Assets, chat: ChatPrompt, fields: ChatFields
) -> tuple[ValidChat, ChatTemplate | None, OfferedTools]:
    """The valid chat, the template for it (None: the client has sent one), and the tools that it offers."""
    most = assets.tokenizer.most_characters(assets.context_tokens)
    if (size := _size(chat, 4 * most)) > 4 * most:  # a template may leave some of it out
        raise too_long(assets, size, fields.messages)
    use = validate_tools(chat.tools, chat.tool_choice, fields, parallel=chat.parallel_calls)
    template = _template(assets, chat, use, fields)
    messages = _validate_messages(assets, chat, fields)
    if template is not None and DEVELOPER not in template.source:
        messages = [message | {"role": "system"} if message["role"] == DEVELOPER else message for message in messages]
    if assets.why_no_tools is not None and template is not None:
        if use.names or any(message.get("tool_calls") for message in messages):
            name = fields.tools if use.names else fields.messages
            raise InvalidRequest(
                name, f"{name} must not use tools: model {assets.name!r} cannot; {assets.why_no_tools}"
            )
    if chat.continue_final_message and chat.add_generation_prompt:
        name = "continue_final_message"
        raise InvalidRequest(name, f"{name} and add_generation_prompt exclude each other: set one of them")
    valid = ValidChat(
        messages=messages,
        arguments=_arguments(chat, template, use, fields),
        add_generation_prompt=not chat.continue_final_message and chat.add_generation_prompt is not False,
        continued=chat.continue_final_message,
        field=fields.messages,
        most_characters=most,
        uncertain={index: fields.message(index) for index in uncertain(messages)},
    )
    return valid, template, use


async def encode_text(assets: Assets, text: str, *, field: str, special: bool, cut: bool = False) -> tuple[int, ...]:
    """Token ids of a text. A text that fits into no context is refused before it is tokenized, because tokenizing takes
    a hundred times its memory. `special`: add the tokens that the model expects around plain text. `cut`: the caller
    cuts the ids, so there may be more than the context holds."""
    if len(text) > assets.tokenizer.most_characters(assets.context_tokens):
        raise too_long(assets, len(text), field)
    if len(text) < LONG_CHARACTERS:
        return assets.tokenizer.encode(text, special=special)
    if cut:
        return await asyncio.to_thread(assets.tokenizer.encode, text, special=special)
    return await asyncio.to_thread(_encode_long, assets, text, field=field, special=special)


def _encode_long(assets: Assets, text: str, *, field: str, special: bool) -> tuple[int, ...]:
    """Tokenize the text, or only its beginning where that is longer than the context already."""
    first, context = DENSE * assets.context_tokens, assets.context_tokens
    while first < len(text):
        tokens = len(assets.tokenizer.encode(text[:first], special=special)) - MARGIN
        if tokens > context:
            what = f"the first {first} characters of {field} alone have about {tokens} tokens"
            limit = f"this model's maximum context length is {context} tokens, the answer included"
            raise ContextTooLong(field, f"{limit}; {what}: shorten it")
        first *= 4
    return assets.tokenizer.encode(text, special=special)


def _template(assets: Assets, chat: ChatPrompt, use: OfferedTools, fields: ChatFields) -> ChatTemplate | None:
    """The template of the model to take; None: the client has sent its own."""
    named = assets.templates
    if chat.template is not None and chat.template not in named:
        if assets.client_templates is None:
            known = f"; it may name one of {', '.join(sorted(named))}" if named else ""
            raise InvalidRequest("chat_template", f"chat_template: this gateway renders no templates of clients{known}")
        return None
    if chat.template is not None:
        return named[chat.template]
    if use.names and TOOL_USE in named:
        return named[TOOL_USE]
    if assets.template is None:
        name = fields.messages
        raise InvalidRequest(name, f"model {assets.name!r} has no chat template; send a prompt instead")
    return assets.template


def _arguments(chat: ChatPrompt, template: ChatTemplate | None, use: OfferedTools, fields: ChatFields) -> Json:
    """Variables of the template besides the messages."""
    arguments = dict(chat.template_arguments or {})
    if reserved := RESERVED & set(arguments):
        name = fields.template_arguments
        raise InvalidRequest(name, f"{name} must not set {min(reserved)}: the gateway sets it")
    if chat.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", chat.reasoning_effort)
        for switch in SWITCHES:
            if template is None or template.reads(switch):
                arguments.setdefault(switch, chat.reasoning_effort not in _UNTHINKING)
    if use.names:
        arguments["tools"] = shown_tools(use)
    if chat.documents is not None:
        for index, document in enumerate(chat.documents):
            if not isinstance(document, dict):
                raise InvalidRequest(
                    f"documents[{index}]", f"documents[{index}] must be an object, with title and text"
                )
        arguments["documents"] = list(chat.documents)
    return arguments


def _validate_messages(assets: Assets, chat: ChatPrompt, fields: ChatFields) -> list[Json]:
    if not chat.messages:
        raise InvalidRequest(fields.messages, f"{fields.messages} needs at least one message")
    if len(chat.messages) > assets.context_tokens:  # a message is at least one token
        validate_length(fields.messages, len(chat.messages), assets.context_tokens)
    valid = [_validate_message(message, fields, index) for index, message in enumerate(chat.messages)]
    check_own_roles(valid, assets, fields)
    if chat.continue_final_message and not isinstance(valid[-1].get("content"), str):
        name = f"{fields.message(len(valid) - 1)}.content"
        raise InvalidRequest(name, f"{name} has no text that continue_final_message could continue")
    return valid


def _validate_message(message: Json, fields: ChatFields, index: int) -> Json:
    """The message as templates expect it: content as one text, arguments of calls as objects."""
    path = fields.message(index)
    validate_role(message, path)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, f"{path}.content[{at}]") for at, part in enumerate(content))
    if content is None and (message["role"] != "assistant" or not message.get("tool_calls")):
        raise InvalidRequest(f"{path}.content", f"{path}.content is missing")
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{path}.content", f"{path}.content must be text or a list of text parts")
    # Templates ask whether a field is there at all, so a null or no call at all is as good as no field.
    given = {key: value for key, value in message.items() if value is not None and (key, value) != ("tool_calls", [])}
    valid = validate_reasoning(given | {"content": content}, path)
    return validate_earlier_calls(valid, fields, index) if valid.get("tool_calls") else valid


def _part_text(part: Any, path: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("text", "input_text", "output_text"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequest(f"{path}.type", f"{path}.type is {brief(repr(kind))}; only text is supported")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{path}.text", f"{path}.text must be text")
    return str(part["text"])
