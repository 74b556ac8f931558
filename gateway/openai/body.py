"""Parses an OpenAI request body, and refuses by name every field that the gateway cannot honour.

Silence would be worse: a client whose grammar or penalty is ignored gets wrong answers that look right. Fields that are
not in gateway/openai/types.py are of three kinds: hints that never change an answer are dropped, known settings that
are not supported are refused unless their value is neutral, and all others are refused as unknown, with the nearest
name."""

import re
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from mesh.errors import InvalidRequest, brief

HINTS = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_retention kv_transfer_params".split()
)
# Known settings that are not supported, with the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "thinking_token_budget": (),
    "logprob_token_ids": (),
    "spaces_between_special_tokens": (True, False),
    "stream_interval": (1,),
    "mm_processor_kwargs": (),
    "vllm_xargs": (),
    "echo": (False,),
}
REMOVED = {
    "functions": "was replaced by tools",
    "function_call": "was replaced by tool_choice",
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"),
        "was replaced by structured_outputs upstream and is never ignored here",
    ),
}

Body = TypeVar("Body", bound=msgspec.Struct)


def parse_body(raw: bytes, kind: type[Body]) -> Body:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest(None, "the body must be a JSON object")
    known = kind.__struct_fields__
    for name in [name for name in fields if name not in known]:
        _check_unlisted(name, fields.pop(name), known)
    try:
        return msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from error


def _check_unlisted(name: str, value: Any, known: tuple[str, ...]) -> None:
    if name in HINTS or (name in NEUTRAL and (value is None or _is_neutral(value, NEUTRAL[name]))):
        return
    name = brief(name)
    if name in REMOVED:
        raise InvalidRequest(name, f"{name} is not supported: it {REMOVED[name]}")
    if name in NEUTRAL:
        raise InvalidRequest(name, f"{name} is not supported: leave it out")
    near = get_close_matches(name, (*known, *NEUTRAL), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidRequest(name, f"{name} is no field of this endpoint{hint}")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)


def _type_error(message: str) -> InvalidRequest:
    """msgspec ends its messages with the path of the field: "Expected `int`, got `str` - at `$.n`"."""
    match = re.fullmatch(r"(.*?)(?: - at `\$\.?(.*)`)?", message, re.DOTALL)
    what, path = (match[1], match[2]) if match else (message, None)
    unknown = re.search(r"unknown field `(.+?)`", what)
    if unknown:
        what = what.replace(unknown[1], brief(unknown[1]))
        path = f"{path}.{brief(unknown[1])}" if path else brief(unknown[1])
    return InvalidRequest(path or None, f"{path or 'the body'}: {what}")
