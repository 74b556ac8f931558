"""A valid chat as token ids: rendered by a template, then tokenized so that no text of a client is a control token.

Step 1 of a request's life, behind gateway/prompts/prompt.py, which validates the chat."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.prompts.assets import Assets
from gateway.text.chat import ChatTemplate, template_variables
from gateway.text.controls import Guarded, escaped
from gateway.text.formats import reasoning_begun
from mesh.errors import ContextTooLong, InvalidRequest, brief

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ValidChat:
    messages: Sequence[Json]
    arguments: Json  # variables of the template besides the messages
    add_generation_prompt: bool
    continued: bool  # the answer continues the last message
    field: str  # the client's name for the messages
    most_characters: int  # a longer prompt fits into no context
    uncertain: Mapping[int, str]  # messages that a template may leave out, and their paths


def render_chat(assets: Assets, chat: ValidChat, template: ChatTemplate) -> tuple[tuple[int, ...], bool]:
    """Token ids, and whether the prompt ends inside the model's reasoning."""
    guarded, messages = _guard(assets, chat)
    text = template.render(
        messages,
        add_generation_prompt=chat.add_generation_prompt,
        arguments=guarded.values,
        field=chat.field,
    )
    if chat.uncertain:
        _check_shown(chat, guarded, messages, template)
    return _encode(assets, chat, guarded, text)


async def render_own(assets: Assets, chat: ValidChat, source: str) -> tuple[tuple[int, ...], bool]:
    """The same with a template of the client."""
    assert assets.client_templates is not None, "the gateway renders templates of clients"
    guarded, messages = await asyncio.to_thread(_guard, assets, chat)
    variables = template_variables(assets.special, messages, chat.add_generation_prompt, guarded.values)
    text = await assets.client_templates.render(source, variables, longest=chat.most_characters)
    return await asyncio.to_thread(_encode, assets, chat, guarded, text)


def too_long(assets: Assets, characters: int, field: str) -> ContextTooLong:
    return ContextTooLong(
        field,
        f"this model's maximum context length is {assets.context_tokens} tokens, which cannot hold the {characters} "
        f"characters of {field}: shorten {field}",
    )


def _check_shown(chat: ValidChat, guarded: Guarded, messages: Sequence[Json], template: ChatTemplate) -> None:
    """Refuses a message that the template leaves out, because the model would answer as if it had not been sent."""
    probed = [*messages]
    for index in chat.uncertain:
        probed[index] = probed[index] | {"content": f"{guarded.cut}{index}{guarded.cut}"}
    text = template.render(
        probed, add_generation_prompt=chat.add_generation_prompt, arguments=guarded.values, field=chat.field
    ).replace(escaped(guarded.cut), guarded.cut)
    for index, path in chat.uncertain.items():
        if f"{guarded.cut}{index}{guarded.cut}" not in text:
            role = brief(repr(messages[index]["role"]))
            what = f"{path}.role is {role}, and the model's chat template leaves such a message out"
            raise InvalidRequest(f"{path}.role", f"{what}: send its text in another role")


def _guard(assets: Assets, chat: ValidChat) -> tuple[Guarded, list[Json]]:
    guarded, messages = assets.controls.guard(chat.arguments, chat.messages, chat.field)
    if chat.continued:
        # Text behind the mark, and the space if the template trims its messages, is cut off.
        messages[-1] = messages[-1] | {"content": messages[-1]["content"] + guarded.cut + " "}
    return guarded, messages


def _encode(assets: Assets, chat: ValidChat, guarded: Guarded, text: str) -> tuple[tuple[int, ...], bool]:
    if chat.continued:
        before, mark, behind = text.rpartition(guarded.cut)
        if not mark:
            name = "continue_final_message"
            raise InvalidRequest(name, f"{name}: the chat template does not show the end of the last message")
        text = before if behind.startswith(" ") else before.rstrip()
    if len(text) > chat.most_characters:
        raise too_long(assets, len(text), chat.field)
    begun = reasoning_begun(assets.reasoning, text)
    if chat.continued and assets.reasoning is not None:
        content = str(chat.messages[-1]["content"])
        begun |= content.rfind(assets.reasoning.begin) > content.rfind(assets.reasoning.end)
    return assets.controls.encode(text, guarded, chat.field), begun
