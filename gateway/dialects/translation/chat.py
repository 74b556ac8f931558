"""A body of another chat API as a chat completion, with the names by which its errors go back.

Step 1 of a request's life over HTTP, before gateway/dialects/openai/request.py. A translation is one function of the
body; a long body is translated in a thread."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.dialects.openai.request import Spelling
from gateway.dialects.openai.types import ChatRequest
from gateway.dialects.translation.options import ChatOptions
from gateway.dialects.translation.transcript import Transcript
from gateway.prompts.prompt import size_of
from gateway.text.tools import ChatFields

LONG = 16_384  # characters and values that take some milliseconds to translate

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TranslatedFields(ChatFields):
    """How a client spells the fields of a chat whose messages it wrote in other places."""

    paths: tuple[str, ...] = ()

    def message(self, index: int) -> str:
        return self.paths[index]

    def call(self, message: int, index: int) -> str:
        return self.paths[message]


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    body: ChatRequest
    spelling: Spelling


def translated_chat(
    body: ChatOptions,
    transcript: Transcript,
    more: Mapping[str, Any],
    *,
    messages: str,
    parameters: str,
    names: Mapping[str, str],
    form: str,
) -> TranslatedChat:
    """`more`: fields of the chat completion besides those of ChatOptions; the names are the client's."""
    same = {name: getattr(body, name) for name in ChatOptions.__struct_fields__}
    fields = TranslatedFields(
        messages=messages,
        tools="tools",
        template_arguments="chat_template_kwargs",
        function="",
        arguments="arguments",
        parameters=parameters,
        paths=tuple(transcript.paths),
    )
    chat = ChatRequest(**{**same, "messages": transcript.messages(), **more})
    return TranslatedChat(chat, Spelling(fields, names, form, flat=True))


async def when_idle(translate: Callable[[], Made], values: Sequence[Any]) -> Made:
    """Translates, in a thread where the values are long."""
    if size_of(values, LONG) > LONG:
        return await asyncio.to_thread(translate)
    return translate()
