"""The JSON schemas of `make schemas`: every supported keyword in at least five, alone and inside each other.

Simple schemas are put into each way of nesting; whole ones, as applications send them, stand beside them."""

from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]

STRINGS: dict[str, Json] = {
    "short text": {"type": "string", "maxLength": 12},
    "text of one length": {"type": "string", "minLength": 4, "maxLength": 4},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "word": {"type": "string", "pattern": "^[a-z]{1,8}$"},
    "either word": {"type": "string", "pattern": "^(yes|no|perhaps)$"},
    "letters and a bound": {"type": "string", "pattern": "^[a-f]*$", "minLength": 2, "maxLength": 6},
    **{
        name: {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid")
    },
    "address": {"type": "string", "format": "email", "maxLength": 20},
    "host": {"type": "string", "format": "hostname", "maxLength": 16},
    "link": {"type": "string", "format": "uri", "maxLength": 24},
}
NUMBERS: dict[str, Json] = {
    "whole": {"type": "integer", "minimum": -1000, "maximum": 1000},
    "count": {"type": "integer", "minimum": 0, "exclusiveMaximum": 100},
    "positive": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9999},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "between": {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
    "tens": {"type": "integer", "minimum": 0, "maximum": 500, "multipleOf": 10},
    "quarters": {"type": "number", "minimum": 0, "maximum": 8, "multipleOf": 0.25},
}
OTHERS: dict[str, Json] = {
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "colour": {"enum": ["red", "green", "blue"]},
    "mixed": {"enum": ["auto", 0, 1, None, True, [1, 2], {"a": 1}]},
    "fixed": {"const": "v1"},
    "fixed object": {"const": {"kind": "point", "at": [0, 0]}},
    "two types": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
    "one of two": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 6}, {"const": "none"}]},
    "exactly one": {"oneOf": [{"type": "string", "maxLength": 5}, {"type": "integer", "minimum": 0, "maximum": 9}]},
    "both": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 70}]},
    "both bounds": {"allOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 6}]},
}
SIMPLE = {**STRINGS, **NUMBERS, **OTHERS}


def in_object(schema: Json) -> Json:
    return {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "value": schema},
        "required": ["id", "value"],
        "additionalProperties": False,
    }


def in_array(schema: Json) -> Json:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}


def in_tuple(schema: Json) -> Json:
    return {"type": "array", "prefixItems": [{"type": "boolean"}, schema], "items": False, "minItems": 2}


def optional(schema: Json) -> Json:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Optional",
        "type": "object",
        "properties": {"first": {**schema, "description": "may be left out"}, "last": {"type": "boolean"}},
        "required": ["last"],
        "additionalProperties": False,
    }


def by_reference(schema: Json) -> Json:
    pair = {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 2, "maxItems": 2}
    whole = {"type": "object", "properties": {"one": {"$ref": "#/$defs/item"}, "pair": pair}}
    return {"$defs": {"item": schema}, **whole, "required": ["one", "pair"], "additionalProperties": False}


def by_old_reference(schema: Json) -> Json:
    return {"definitions": {"item": schema}, "type": "array", "items": {"$ref": "#/definitions/item"}, "maxItems": 2}


def as_map(schema: Json) -> Json:
    return {
        "type": "object",
        "patternProperties": {"^[a-d]$": schema},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    }


def deep(schema: Json) -> Json:
    inner = {"type": "object", "properties": {"leaf": schema}, "required": ["leaf"], "additionalProperties": False}
    list_of = {"type": "array", "items": inner, "minItems": 1, "maxItems": 2}
    outer = {"type": "object", "properties": {"list": list_of}, "required": ["list"], "additionalProperties": False}
    return {"type": "object", "properties": {"outer": outer}, "required": ["outer"], "additionalProperties": False}


def or_null(schema: Json) -> Json:
    return {"anyOf": [in_object(schema), {"type": "null"}]}


NESTINGS: dict[str, Callable[[Json], Json]] = {
    "alone": lambda schema: schema,
    "in an object": in_object,
    "in an array": in_array,
    "in a tuple": in_tuple,
    "optional": optional,
    "by reference": by_reference,
    "as a map": as_map,
    "deep": deep,
    "or null": or_null,
}


def _node(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD: Json = {"type": "string", "pattern": "^[a-z]{1,6}$"}
SMALL: Json = {"type": "integer", "minimum": 0, "maximum": 9}
WHOLE: dict[str, Json] = {
    "tree": {
        "$defs": {
            "node": _node(name=WORD, children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2})
        },
        "$ref": "#/$defs/node",
    },
    "linked list": {
        "$defs": {"cell": _node(head=SMALL, tail={"anyOf": [{"$ref": "#/$defs/cell"}, {"type": "null"}]})},
        "$ref": "#/$defs/cell",
    },
    "expression": {
        "definitions": {
            "term": {
                "anyOf": [
                    SMALL,
                    _node(op={"enum": ["+", "-", "*"]}, left={"$ref": "#/definitions/term"}, right=SMALL),
                ]
            }
        },
        "$ref": "#/definitions/term",
    },
    "two that name each other": {
        "$defs": {
            "person": _node(name=WORD, pets={"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 1}),
            "pet": _node(kind=WORD, friend={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/person"}]}),
        },
        "$ref": "#/$defs/person",
    },
    "the root again": {
        "type": "object",
        "properties": {"value": SMALL, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    },
    "shapes": {
        "oneOf": [
            _node(kind={"const": "circle"}, radius=SMALL),
            _node(kind={"const": "square"}, side=SMALL),
        ]
    },
    "events": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {
            "oneOf": [
                _node(type={"const": "login"}, user=WORD),
                _node(type={"const": "payment"}, amount={"type": "number", "minimum": 0, "maximum": 100}),
            ]
        },
    },
    "pydantic's": {
        "$defs": {
            "Status": {"enum": ["open", "closed"], "title": "Status", "type": "string"},
            "Item": {
                "properties": {
                    "sku": {"title": "Sku", "type": "string", "pattern": "^[A-Z]{3}$"},
                    "count": {"default": 1, "minimum": 1, "maximum": 99, "title": "Count", "type": "integer"},
                },
                "required": ["sku"],
                "title": "Item",
                "type": "object",
                "additionalProperties": False,
            },
        },
        "properties": {
            "status": {"$ref": "#/$defs/Status"},
            "items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array", "maxItems": 2},
            "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}], "default": None, "title": "Note"},
        },
        "required": ["status", "items"],
        "title": "Order",
        "type": "object",
        "additionalProperties": False,
    },
    "weather": _node(
        city={"type": "string", "maxLength": 12},
        celsius={"type": "number", "minimum": -60, "maximum": 60},
        wind={"allOf": [{"$ref": "#/$defs/speed"}, {"minimum": 0}]},
        day={"type": "string", "format": "date"},
    )
    | {"$defs": {"speed": {"type": "integer", "maximum": 300}}},
    "open object": {
        "type": "object",
        "properties": {"id": SMALL},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "boolean schemas": {
        "type": "object",
        "properties": {"never": False, "flag": {"type": "boolean"}},
        "required": ["flag"],
        "additionalProperties": False,
    },
    "map of maps": {
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": SMALL, "maxProperties": 1},
        "minProperties": 1,
        "maxProperties": 1,
    },
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
    "row": {"type": "array", "prefixItems": [WORD, SMALL, {"type": "boolean"}], "items": False, "minItems": 3},
    "at least one": {"type": "object", "additionalProperties": WORD, "minProperties": 1, "maxProperties": 3},
    "unit": {"enum": ["ms", "s", "min"]},
    "kept apart": {"allOf": [_node(a=SMALL) | {"additionalProperties": True}, {"required": ["a"]}], "maxProperties": 1},
}


def cases() -> Iterator[tuple[str, Json]]:
    for kind, schema in SIMPLE.items():
        for name, nest in NESTINGS.items():
            yield f"{kind}, {name}", nest(schema)
    for kind, schema in OTHERS.items():
        yield f"{kind}, by an old reference", by_old_reference(schema)
    yield from WHOLE.items()


def keywords(schema: Any) -> Iterator[str]:
    """The keywords of a schema, those of the schemas inside it included."""
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        yield name
        if name in ("properties", "patternProperties", "$defs", "definitions"):
            for inner in value.values():
                yield from keywords(inner)
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for inner in value:
                yield from keywords(inner)
        elif name in ("items", "additionalProperties"):
            yield from keywords(value)
