"""Prompts as callers write them: texts, token ids, or dicts with one of these; one of them, or many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from library.params import ids_of, listed_of

Prompt = str | Mapping[str, Any] | Sequence[int]  # text, {"prompt": …}, {"prompt_token_ids": …} or token ids
Message = Mapping[str, Any]
_FIELDS = ("prompt", "prompt_token_ids")


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]  # the text of these ids


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A text, or token ids that stand for one."""

    text: str | None = None
    ids: tuple[int, ...] | None = None


def many_prompts(name: str, prompts: Prompt | Sequence[Prompt]) -> list[GivenPrompt]:
    """One prompt or several, checked. `name`: the caller's argument."""
    if isinstance(prompts, str | Mapping):
        return [given_prompt(name, prompts)]
    listed: Any = listed_of(name, prompts, "prompts: texts, lists of token ids, or dicts")
    if listed and not any(isinstance(each, str | Mapping) or hasattr(each, "__iter__") for each in listed):
        return [GivenPrompt(ids=tuple(ids_of(name, listed)))]
    return [given_prompt(f"{name}[{at}]", each) for at, each in enumerate(listed)]


def given_prompt(name: str, prompt: Any) -> GivenPrompt:
    if isinstance(prompt, str):
        return GivenPrompt(encodable(name, prompt))
    if not isinstance(prompt, Mapping):
        return GivenPrompt(ids=tuple(ids_of(name, prompt)))
    for field in prompt:
        if field not in _FIELDS:
            raise ValueError(f"{field} of a prompt is not supported ({name}): give {' or '.join(_FIELDS)}")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{name}: prompt must be a text")
    if ids is not None:
        return GivenPrompt(text, tuple(ids_of(f"{name}: prompt_token_ids", ids)))
    if text is None:
        raise ValueError(f"{name}: a prompt must have {' or '.join(_FIELDS)}")
    return GivenPrompt(encodable(name, text))


def encodable(name: str, text: str) -> str:
    if not text:
        raise ValueError(f"{name} is empty: a prompt needs at least one token")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds half of a surrogate pair at character {error.start}") from None
    return text


def many_chats(messages: Any) -> list[list[Message]]:
    """One conversation or several."""
    listed = listed_of("messages", messages, "messages, or of conversations")
    if not listed:
        raise ValueError("messages is empty: a chat needs at least one message")
    if isinstance(listed[0], Mapping):
        return [_conversation("messages", listed)]
    return [_conversation(f"messages[{at}]", each) for at, each in enumerate(listed)]


def _conversation(name: str, messages: Any) -> list[Message]:
    listed = listed_of(name, messages, "messages")
    for at, message in enumerate(listed):
        if not isinstance(message, Mapping):
            raise TypeError(f"{name}[{at}] must be a dict with role and content, not {type(message).__name__}")
    if not listed:
        raise ValueError(f"{name} is empty: a chat needs at least one message")
    return listed
