"""Writes a configuration as YAML that people read: block style, short values on one line, notes as comments.

The configuration is made of dictionaries, lists and scalars; `Noted` puts a comment above a value. Only what YAML can
hold without doubt is written bare, all other text stands in quotes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

COLUMNS = 110  # longest line of a value in flow style, and of a comment

_BARE = re.compile(r"[A-Za-z_/][\w/.-]*|\d+(\.\d+)?m?s|\d+\.\d+\.\d+\.\d+")  # words, paths, durations, IPv4 addresses
_RESERVED = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True, slots=True)
class Noted:
    """A value and the comment that stands above it."""

    note: str
    value: Any


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    """A message of Envoy's that says its own type, for instance `extensions.filters.http.router.v3.Router`."""
    return {"@type": f"type.googleapis.com/envoy.{kind}", **fields}


def extension(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": typed(f"extensions.{kind}", **fields)}


def plain(value: Any) -> Any:
    """The same configuration without its notes."""
    match value:
        case Noted():
            return plain(value.value)
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list():
            return [plain(inner) for inner in value]
    return value


def to_yaml(document: dict[str, Any], header: str) -> str:
    return "\n".join([*_comment(header, ""), *_mapping(document, ""), ""])


def _mapping(mapping: dict[str, Any], indent: str) -> Iterator[str]:
    for key, given in mapping.items():
        value = given
        if isinstance(value, Noted):
            yield from _comment(value.note, indent)
            value = value.value
        head = f"{indent}{_scalar(key)}:"
        line = f"{head} {_flow(value)}"
        if _is_short(value) and len(line) <= COLUMNS:
            yield line
        elif isinstance(value, dict):
            yield head
            yield from _mapping(value, indent + "  ")
        elif isinstance(value, list):
            yield head
            yield from _sequence(value, indent)
        else:
            yield line


def _sequence(items: list[Any], indent: str) -> Iterator[str]:
    for given in items:
        value = given
        if isinstance(value, Noted):
            yield from _comment(value.note, indent)
            value = value.value
        line = f"{indent}- {_flow(value)}"
        if not isinstance(value, dict | list) or (_is_short(value) and len(line) <= COLUMNS):
            yield line
            continue
        inner = indent + "  "
        lines = list(_mapping(value, inner) if isinstance(value, dict) else _sequence(value, inner))
        first = next(place for place, text in enumerate(lines) if not text.lstrip().startswith("#"))
        yield from (text[2:] for text in lines[:first])
        yield f"{indent}- {lines[first][len(inner) :]}"
        yield from lines[first + 1 :]


def _is_short(value: Any) -> bool:
    """Whether the value may stand on one line: no notes in it, and no list of mappings."""
    match value:
        case Noted():
            return False
        case dict():
            return all(_is_short(inner) for inner in value.values())
        case list():
            return all(not isinstance(inner, dict | list | Noted) for inner in value)
    return True


def _flow(value: Any) -> str:
    match value:
        case Noted():
            return _flow(value.value)
        case dict():
            return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)


def _comment(note: str, indent: str) -> list[str]:
    width = COLUMNS - len(indent) - 2
    return [f"{indent}# {line}" for part in note.split("\n") for line in wrap(part, width, break_long_words=False)]
