"""The process that parses large request bodies for gateway/dialects/openai/large.py, one after the other
(gateway/helpers/child.py)."""

import gc
import resource
from array import array
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from gateway.dialects.openai.body import parse_body
from gateway.dialects.openai.limits import check_limits
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError, BodyTooLarge, InvalidRequest

MEMORY_BYTES = 4 * 2**30
PACKED_IDS, PACKED_CHARACTERS = 64, 4096  # lists and texts of at least this size travel as bytes
MAX_VALUES = 100_000  # values of a field, and lists and objects of a body; token ids of prompts have other limits
CHEAP = 16  # integers of a long list that together cost what one other value does
IDS, TEXT, NUMBER = 1, 2, 3  # kinds of packed values; the last: an integer of more than 64 bits
TOO_MUCH_MEMORY = "parsing the body needs too much memory: send less"


class ParseOrder(msgspec.Struct):
    """How to parse one body."""

    module: str  # module of the body's type
    kind: str
    strict: bool
    context_tokens: int
    choices: int
    prompt_tokens: int
    stop_strings: int


class ParsedBody(msgspec.Struct):
    """The answer: either the fields, or the error's class, field and message."""

    fields: dict[str, Any] = {}
    whole: dict[str, Any] = {}  # fields whose values need no conversion
    ignored: list[str] = []
    error: str = ""
    param: str | None = None
    message: str = ""


def prepare() -> Callable[[bytes, bytes], bytes]:
    gc.disable()  # a parsed body has no cycles
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    return answer


def answer(order: bytes, raw: bytes) -> bytes:
    return msgspec.msgpack.encode(answer_to(msgspec.json.decode(order, type=ParseOrder), raw))


def answer_to(order: ParseOrder, raw: bytes) -> ParsedBody:
    try:
        kind = getattr(import_module(order.module), order.kind)
        limits = DoorConfig(choices=order.choices, prompt_tokens=order.prompt_tokens, stop_strings=order.stop_strings)
        ignored = list[str]()
        if (found := count_containers(raw)) > MAX_VALUES:
            raise InvalidRequest(None, f"the body has {found} lists and objects; at most {MAX_VALUES} are allowed")
        body = parse_body(raw, kind, strict=order.strict, ignored=ignored)
        check_limits(body, limits, order.context_tokens)
        values = {name: value for name in kind.__struct_fields__ if (value := getattr(body, name)) is not None}
        plain = {name: msgspec.to_builtins(value) for name, value in values.items()}
        for name, value in plain.items():
            if name != "prompt" and (found := _count(value)) > MAX_VALUES:
                raise InvalidRequest(name, _too_many(name, value, found))
        whole = {name: _pack(value) for name, value in plain.items() if value == values[name]}
        rest = {name: _pack(value) for name, value in plain.items() if name not in whole}
        return ParsedBody(fields=rest, whole=whole, ignored=ignored[:MAX_VALUES])
    except MemoryError:
        return ParsedBody(error=BodyTooLarge.__name__, message=TOO_MUCH_MEMORY)
    except BatonError as error:
        return ParsedBody(error=type(error).__name__, param=error.field, message=error.message)


def count_containers(raw: bytes) -> int:
    """Lists and objects of a JSON text, counted without parsing it: brackets outside of strings."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_VALUES:
        return 0
    outside = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    return sum(part.count(b"[") + part.count(b"{") for part in outside)


def _too_many(name: str, value: Any, found: int) -> str:
    """The refusal of a field in which `_count` has found too many values; a list of integers is named by its length."""
    if isinstance(value, list) and _is_ids(value):
        return f"{name} has {len(value)} integers; at most {MAX_VALUES * CHEAP} are allowed: send fewer"
    return (
        f"{name} has {found} values; at most {MAX_VALUES} are allowed, and of integers in a list {CHEAP} count as one"
    )


def _count(value: Any) -> int:
    """Values within this one; integers of a long list count for little, because they travel as bytes."""
    found, level = 1, [value] if isinstance(value, dict | list) else []
    while level:
        inner = list[Any]()
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif not _is_ids(each):
                inner.extend(each)
            else:
                found += len(each) // CHEAP
        found, level = found + len(inner), [each for each in inner if isinstance(each, dict | list)]
    return found


def _pack(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pack(each) for key, each in value.items()}
    if isinstance(value, list):
        if _is_ids(value):
            return msgspec.msgpack.Ext(IDS, array("q", value).tobytes())
        return [_pack(each) for each in value]
    if isinstance(value, str) and len(value) >= PACKED_CHARACTERS:
        return msgspec.msgpack.Ext(TEXT, value.encode())
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return msgspec.msgpack.Ext(NUMBER, b"%d" % value)
    return value


def _is_ids(value: list[Any]) -> bool:
    return len(value) >= PACKED_IDS and all(type(each) is int and -(2**63) <= each < 2**63 for each in value)
