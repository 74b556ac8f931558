"""JSON schemas of clients: which keywords are supported, and how large a schema may be.

Step 1 of a request's life. The table here is the list of docs/structured-output.md. A keyword outside it is refused by
name and place, because a schema that is followed in part gives answers that look right and are not. Annotations, which
allow and forbid nothing, are dropped."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.text.json_text import parse_json_text
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
MAX_BYTES = 256 * 1024
MAX_DEPTH = 48  # schemas inside each other
MAX_SCHEMAS = 2000  # schemas inside one, itself included
MAX_MULTIPLES = 20  # uses of multipleOf
MAX_MULTIPLE = 1000
MAX_ENUM = 5000  # values of all enums
LONGEST_HOSTNAME = 253  # characters: RFC 1123, section 2.1, and RFC 1034, section 3.1
MAX_REPEATS = 10_000  # highest minItems, maxLength and the like
MAX_EXACT = 2**53  # llguidance computes with floats, which round the integers beyond it

INNER = ("items", "additionalProperties")  # one schema
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # a list of schemas
MAPS = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
VALUES = ("type", "enum", "const", "required", "pattern", "format", "$ref", *COUNTS, *NUMBERS)
SUPPORTED = (*VALUES, *INNER, *LISTS, *MAPS)
ANNOTATIONS = frozenset(
    "$schema $id $comment title description default example examples deprecated readOnly writeOnly discriminator "
    "contentEncoding contentMediaType".split()
)
NEUTRAL = {"uniqueItems": False, "nullable": False}  # values that forbid nothing
# One space, or a new line with its indentation: a model that likes white space cannot write it for ever.
WHITE_SPACE = r" |\n {0,40}|\n\t{0,10}"


@dataclass(slots=True)
class _Count:
    schemas: int = 0
    enum: int = 0
    multiples: int = 0


def json_grammar(schema: Any, path: str, *, white_space: str | None = WHITE_SPACE) -> str:
    """A Lark expression for JSON texts of this schema. `white_space`: what may stand between tokens; None: nothing."""
    if isinstance(schema, str):
        schema = parse_json_text(schema, path)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(path, f"{path} must be a JSON schema, which is an object")
    clean = _clean(schema, path, _Count(), 0)
    style: Json = {"whitespace_flexible": False} if white_space is None else {"whitespace_pattern": white_space}
    whole: Json = {"x-guidance": style, **(clean if isinstance(clean, dict) else {} if clean else {"enum": []})}
    text = json.dumps(whole)
    if len(text) > MAX_BYTES:
        raise InvalidRequest(path, f"{path} has {len(text)} bytes; at most {MAX_BYTES} are allowed")
    return f"%json {text}"


def why_unsupported(schema: Any, path: str) -> str | None:
    """Why the schema cannot be followed; None: it can, as far as its keywords tell."""
    try:
        json_grammar(schema, path)
    except InvalidRequest as error:
        return error.message
    return None


def _clean(schema: Any, path: str, count: _Count, depth: int) -> Any:
    """The schema without its annotations; raises where it holds what is not supported."""
    count.schemas += 1
    if depth > MAX_DEPTH:
        raise InvalidRequest(path, f"{brief(path)}: schemas may be nested {MAX_DEPTH} deep at most")
    if count.schemas > MAX_SCHEMAS:
        raise InvalidRequest(path, f"{brief(path)}: a schema may hold at most {MAX_SCHEMAS} schemas")
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise InvalidRequest(path, f"{path} must be a JSON schema, which is an object")
    clean: Json = {}
    for name, value in schema.items():
        where = f"{path}.{brief(name)}"
        if name in ANNOTATIONS or (name in NEUTRAL and value is NEUTRAL[name]):
            continue
        if name in INNER:
            clean[name] = _clean(value, where, count, depth + 1)
        elif name in LISTS:
            clean[name] = [
                _clean(each, f"{where}[{at}]", count, depth + 1)
                for at, each in enumerate(_shaped(list, value, where, "a list of schemas"))
            ]
        elif name in MAPS:
            clean[name] = {
                key: _clean(each, f"{where}.{brief(key)}", count, depth + 1)
                for key, each in _shaped(dict, value, where, "an object of schemas").items()
            }
        elif name in VALUES:
            clean[name] = _value(name, value, where, count)
        else:
            raise InvalidRequest(
                where,
                f"{where}: the keyword {brief(name)!r} is not supported; docs/structured-output.md lists those "
                "that are",
            )
    if clean.get("format") == "hostname":  # llguidance bounds each label, not the name
        clean["maxLength"] = min(clean.get("maxLength", LONGEST_HOSTNAME), LONGEST_HOSTNAME)
    return clean


def _exact(value: Any, path: str) -> None:
    """Raises where a number in a value of `enum`, `const` or a bound would be rounded."""
    waiting = [(value, path)]
    while waiting:
        each, where = waiting.pop()
        if isinstance(each, dict):
            waiting += [(inner, f"{where}.{brief(name)}") for name, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, f"{where}[{at}]") for at, inner in enumerate(each)]
        elif isinstance(each, int | float) and not -MAX_EXACT <= each <= MAX_EXACT:
            what = "must be from -2**53 to 2**53: numbers beyond are not exact. Leave it out, or use a string"
            raise InvalidRequest(where, f"{where} {what}")


def _value(name: str, value: Any, path: str, count: _Count) -> Any:
    if name in ("enum", "const", *NUMBERS):
        _exact(value, path)
    if name == "type":
        _shaped((str, list), value, path, "a type or a list of types")
        wrong = [each for each in ([value] if isinstance(value, str) else value) if each not in TYPES]
        if wrong or not value:
            raise InvalidRequest(path, f"{path} must be one of {', '.join(TYPES)}, or a list of some")
    elif name == "enum":
        count.enum += len(_shaped(list, value, path, "a list of values"))
        if not value or count.enum > MAX_ENUM:
            raise InvalidRequest(path, f"{path} needs a value, and all enums of a schema at most {MAX_ENUM}")
    elif name == "format" and value not in FORMATS:
        raise InvalidRequest(path, f"{path} {brief(str(value))!r} is not supported; these are: {', '.join(FORMATS)}")
    elif name == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        raise InvalidRequest(path, f"{path} must begin with #: schemas from elsewhere are not fetched")
    elif name in COUNTS and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_REPEATS):
        raise InvalidRequest(path, f"{path} must be an integer from 0 to {MAX_REPEATS}")
    elif name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidRequest(path, f"{path} must be a number")
    elif name == "multipleOf":
        count.multiples += 1
        if not 0 < value <= MAX_MULTIPLE or count.multiples > MAX_MULTIPLES:
            what = f"above 0 and at most {MAX_MULTIPLE}, and a schema may hold {MAX_MULTIPLES} of them"
            raise InvalidRequest(path, f"{path} must be {what}")
    elif name == "required" and not all(
        isinstance(each, str) for each in _shaped(list, value, path, "a list of names")
    ):
        raise InvalidRequest(path, f"{path} must be a list of names")
    elif name == "pattern":
        _shaped(str, value, path, "a regular expression")
    return value


def _shaped(kind: Any, value: Any, path: str, what: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidRequest(path, f"{path} must be {what}")
    return value
