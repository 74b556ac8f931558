"""Parses an OpenAI request body, and refuses by name every field that would change the answer and is not supported.

Silence would be worse: a client whose grammar or penalty is ignored gets wrong answers that look right. Fields that are
not in gateway/dialects/openai/types.py are of three kinds. Known settings that are not supported are refused unless
their value is neutral. Hints that never change an answer are ignored, and the answer names them in a header. So are
fields that no endpoint knows, unless the setting `strict_fields` refuses them with the nearest name."""

import re
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from gateway.dialects.openai.types import ChatRequest, CompletionRequest, EmbeddingRequest
from mesh.errors import InvalidRequest, brief

HINTS = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_retention verbosity prediction kv_transfer_params "
    "stream_interval".split()
)
MAX_DEPTH = 128  # objects and lists within each other
# Known settings that are not supported, with the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "suffix": ("",),
    "prompt_embeds": (),
    "use_beam_search": (False,),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "spaces_between_special_tokens": (True, False),
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

LISTED = frozenset(
    (*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *EmbeddingRequest.__struct_fields__)
)

Body = TypeVar("Body", bound=msgspec.Struct)


def parse_body(raw: bytes, kind: type[Body], *, strict: bool = False, ignored: list[str] | None = None) -> Body:
    """`strict`: refuse fields that no endpoint knows. `ignored` gets the names of the fields without effect."""
    if not raw or raw.isspace():
        raise InvalidRequest(None, "the body is empty: send a JSON object")
    try:
        fields = msgspec.json.decode(raw)
    except RecursionError as error:
        raise InvalidRequest(None, f"the body is nested deeper than {MAX_DEPTH} levels") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(None, f"the body is not valid JSON: {_reason(error)}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest(None, "the body must be a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:  # else it cannot be nested deeper
        for name, value in fields.items():
            if is_deeper(value, MAX_DEPTH - 1):
                name = brief(name)
                raise InvalidRequest(name, f"{name} is nested deeper than {MAX_DEPTH} levels")
    known = kind.__struct_fields__
    for name in [name for name in fields if name not in known]:
        if not _check_unlisted(name, fields.pop(name), known, strict) and ignored is not None:
            ignored.append(name)
    try:
        return msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from error


def _reason(error: Exception) -> str:
    """msgspec says that text is cut off where it ends inside an escape: one half of a pair of surrogates."""
    cut = "truncated" in str(error)
    return "a string holds half of a surrogate pair, or the text is cut off" if cut else str(error)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether the value has more lists and objects within each other."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return bool(level)


def _check_unlisted(name: str, value: Any, known: tuple[str, ...], strict: bool) -> bool:
    """Whether the field is honoured; False: it has no effect. Raises where the answer would not be what it asks for."""
    if name in HINTS:
        return False
    if name in NEUTRAL and (value is None or _is_neutral(value, NEUTRAL[name])):
        return True
    name = brief(name)
    if name in REMOVED:
        raise InvalidRequest(name, f"{name} is not supported: it {REMOVED[name]}")
    if name in NEUTRAL:
        raise InvalidRequest(name, f"{name} is not supported: leave it out")
    if not strict and name not in LISTED:
        return False
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
    return InvalidRequest(path or None, f"{path or 'the body'}: {_in_words(what)}")


def _in_words(what: str) -> str:
    """msgspec's message without the names of its types: "Expected `array | null`, got `str`"."""

    def named(match: re.Match[str]) -> str:
        return " or ".join(_TYPES[name] for name in match[1].split(" | "))

    return re.sub(rf"`({_ANY_TYPE}(?: \| {_ANY_TYPE})*)`", named, what)


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_ANY_TYPE = f"(?:{'|'.join(_TYPES)})"
