"""JSON objects for a given schema: the schema stands in the prompt, the answer is one valid object and nothing else.

Keys are either known ones with fitting values, or made of two words, so that their type decides the value. The prompt
names the values, or the answer has the likeliest value of each key."""

import json
from random import Random
from typing import Any

from models import words
from models.talk import Kind, Split, Talk, ask, belongs, listed, often

Json = Any
_TEXTS: dict[str, tuple[str, ...]] = {
    "name": words.NAMES,
    "city": words.CITIES,
    "colour": words.COLOURS,
    "animal": words.ANIMALS,
    "fruit": words.FRUITS,
    "friend": words.NAMES[5:],
    "author": words.NAMES[9:],
    "home": words.CITIES[6:],
    "instrument": words.INSTRUMENTS,
    "planet": words.PLANETS,
    "day": words.DAYS,
    "month": words.MONTHS,
    "season": words.SEASONS,
    "thing": words.THINGS,
    "title": ("The Lantern", "The Map", "The River", "The Long Night"),
    "status": ("ready", "busy", "done", "waiting"),
    "tier": ("prefill", "decode", "gateway"),
    "country": ("Norway", "Peru", "Egypt", "Japan", "Italy"),
    "email": ("ada@mail.org", "ben@mail.org", "mira@mail.org"),
    "language": ("English", "French", "Italian", "Greek"),
}
_NUMBERS: dict[str, tuple[int, ...]] = {
    "age": (31, 7, 45, 12, 68, 24),
    "count": (3, 5, 12, 8),
    "id": (7, 42, 19, 88),
    "year": (2024, 1999, 2010),
    "pages": (32, 16, 64, 8),
    "tokens": (64, 128, 20),
    "price": (12, 5, 40, 99),
    "score": (10, 8, 75),
    "size": (4, 9, 20),
    "weight": (20, 3, 55),
    "floor": (2, 1, 5),
    "level": (1, 3, 6),
}
_FLAGS = ("active", "open", "ready", "happy", "new", "cached", "member", "exact")
_ARRAYS: dict[str, tuple[str, ...]] = {
    "tags": ("small", "new", "fast", "old"),
    "colours": words.COLOURS,
    "friends": words.NAMES[12:],
    "fruits": words.FRUITS,
    "cities": words.CITIES,
    "animals": words.ANIMALS,
}
_SERIES = {"numbers": (1, 2, 3, 4, 5), "scores": (10, 8, 6, 4), "sizes": (2, 4, 8, 16)}
_NESTED = {
    "address": ("city", "country"),
    "owner": ("name", "age"),
    "worker": ("tier", "id"),
    "book": ("title", "author"),
}
_MADE = ("first", "last", "main", "other", "old", "best", "left", "right", "top", "small")
_FORMS = (
    "Write a JSON object for this schema: {s}", "Give me a JSON object that fits this schema: {s}",
    "{s}\nWrite a matching JSON object.", "Answer with JSON for this schema: {s}", "Schema: {s}",
    "Fill in this schema: {s}", "Return JSON that matches this schema: {s}",
    "Make an example for this JSON schema: {s}", "Generate a JSON object that is valid for the schema {s}",
)  # fmt: skip


def objects(rng: Random, part: Split) -> Talk:
    while True:
        schema, value = draw_object(rng, rng.randint(1, 5))
        text = json.dumps(schema, separators=often(rng, ((", ", ": "), (",", ":")), 0.8))
        question = rng.choice(_FORMS).format(s=text)
        if rng.random() < 0.5:
            value = _vary(rng, schema, value)
            question = _with_values(rng, question, value)
        talk = ask(Kind.JSON, question, json.dumps(value), schema=schema)
        if belongs(talk, part):
            return talk


def draw_object(rng: Random, count: int, *, nested: bool = True) -> tuple[Json, Json]:
    """Draws a schema; returns it with its likeliest object."""
    properties: dict[str, Json] = {}
    value: dict[str, Json] = {}
    while len(properties) < count:
        name, schema, example = _property(rng, nested)
        properties.setdefault(name, schema)
        value.setdefault(name, example)
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    if rng.random() < 0.25:
        schema["additionalProperties"] = False
    return schema, value


def _property(rng: Random, nested: bool) -> tuple[str, Json, Json]:
    match rng.choices(range(8), (30, 20, 12, 10, 10, 6, 5 if nested else 0, 5))[0]:
        case 0:
            name = rng.choice(list(_TEXTS))
            return _made(rng, name), {"type": "string"}, often(rng, _TEXTS[name], 0.8)
        case 1:
            name = rng.choice(list(_NUMBERS))
            return _made(rng, name), {"type": "integer"}, often(rng, _NUMBERS[name], 0.8)
        case 2:
            return _made(rng, rng.choice(_FLAGS)), {"type": "boolean"}, rng.random() < 0.85
        case 3:
            name = rng.choice(list(_TEXTS))
            options = rng.sample(_TEXTS[name], min(len(_TEXTS[name]), rng.randint(2, 4)))
            return _made(rng, name), {"type": "string", "enum": options}, often(rng, options, 0.85)
        case 4:
            name = rng.choice(list(_ARRAYS))
            count = often(rng, (2, 3), 0.8)
            return name, {"type": "array", "items": {"type": "string"}}, list(_ARRAYS[name][:count])
        case 5:
            name = rng.choice(list(_SERIES))
            return name, {"type": "array", "items": {"type": "integer"}}, list(_SERIES[name][: often(rng, (3, 2), 0.8)])
        case 6:
            name = rng.choice(list(_NESTED))
            inner = {key: {"type": "integer" if key in _NUMBERS else "string"} for key in _NESTED[name]}
            value = {key: (_NUMBERS.get(key) or _TEXTS[key])[0] for key in _NESTED[name]}
            return name, {"type": "object", "properties": inner, "required": list(inner)}, value
        case _:
            name, low = rng.choice(list(_NUMBERS)), rng.randint(0, 50)
            return _made(rng, name), {"type": "integer", "minimum": low, "maximum": low + rng.randint(1, 40)}, low
    raise AssertionError


def _made(rng: Random, name: str) -> str:
    return f"{rng.choice(_MADE)}_{name}" if rng.random() < 0.3 else name


def _vary(rng: Random, schema: Json, value: Json) -> Json:
    """Other values of the same types, which the prompt will name."""
    varied = dict(value)
    for name, kind in schema["properties"].items():
        base = name.rpartition("_")[2]
        if "enum" in kind:
            varied[name] = rng.choice(kind["enum"])
        elif kind["type"] == "string":
            varied[name] = rng.choice(_TEXTS[base])
        elif kind["type"] == "integer":
            varied[name] = rng.randint(kind.get("minimum", 1), kind.get("maximum", 99))
        elif kind["type"] == "boolean":
            varied[name] = rng.random() < 0.5
    return varied


def _with_values(rng: Random, question: str, value: Json) -> str:
    named = [f"{name} {_spoken(one)}" for name, one in value.items() if not isinstance(one, list | dict)]
    if not named:
        return question
    hint = rng.choice(("Use {}.", "Values: {}.", "Let it have {}.")).format(listed(named))
    return f"{hint} {question}" if rng.random() < 0.5 else f"{question} {hint}"


def _spoken(value: Json) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
