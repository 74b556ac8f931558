"""One line of the input file: the request that it holds, or all that is wrong with it.

The format is OpenAI's: `custom_id`, `method`, `url` and `body`. The functions are pure;
gateway/batches/input_file.py reads the file."""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NoReturn

METHOD = "POST"
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
DIGEST_BYTES = 16  # two of 10^9 ids share a digest with a probability of 10^-21


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request with the name that the user gave it."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineFault:
    line: int  # number in the file, from 1
    field: str  # empty: the line as a whole
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field}{': ' if self.field else ''}{self.problem}"


def digest(custom_id: str) -> bytes:
    """The custom_id as sets of many hold it."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def read_line(raw: bytes, number: int) -> tuple[BatchLine | None, list[LineFault]]:
    """The request of a line, or None and its faults."""
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        return None, [LineFault(number, "", "the JSON is nested too deeply")]
    except ValueError as error:
        return None, [LineFault(number, "", f"this is no JSON ({error}); write one object on each line")]
    if not isinstance(value, dict):
        return None, [LineFault(number, "", f"a {_kind(value)} stands here; write one JSON object on each line")]
    faults = [LineFault(number, field, problem) for field, problem in _problems(value)]
    return (None, faults) if faults else (BatchLine(value["custom_id"], value["url"], value["body"]), [])


def _problems(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Each wrong field with its problem and the remedy."""
    found = list[tuple[str, str]]()
    if "custom_id" not in value:
        found.append(("custom_id", "it is missing; give each request a name of its own, which its answer carries"))
    elif not isinstance(value["custom_id"], str) or not value["custom_id"]:
        found.append(("custom_id", f"it is {_shown(value['custom_id'])}; write a string that is not empty"))
    if value.get("method") != METHOD:
        found.append(("method", f"it is {_shown(value.get('method'))}; write {METHOD!r}"))
    if value.get("url") not in URLS:
        found.append(("url", f"it is {_shown(value.get('url'))}; write one of {', '.join(URLS)}"))
    body = value.get("body")
    if not isinstance(body, dict):
        found.append(("body", f"it is {_shown(body)}; write the request as a JSON object"))
    elif body.get("stream") not in (None, False):
        found.append(("body.stream", "answers of a batch are whole; remove the field, or write false"))
    return found


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    return repr(value)[:60] if isinstance(value, str | int | float) else f"a {_kind(value)}"


def _kind(value: object) -> str:
    names = {dict: "JSON object", list: "JSON array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
