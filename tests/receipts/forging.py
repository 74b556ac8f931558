"""Forges answers: each leaf, member, item and event of a file is changed, added or removed, one at a time."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.receipts.checked import AnswerState, check_file, read_answer_file
from gateway.receipts.canonical import ReceiptError

KINDS: tuple[Any, ...] = ({}, 7, [1], "x", [{"index": 0}], True, {"type": "x"}, 1.5)
PING = '{"type":"ping"}'
PLACES = {"index", "output_index", "content_index"}  # whose change moves what stands there
# Objects and lists that are one field to the check, wherever in them the change is.
LARGER = (
    *("logprobs", "prompt_logprobs", "output_token_logprobs", "output_top_logprobs"),
    *("tools", "metadata", "input", "reasoning", "text"),
)

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Forgery:
    what: str  # for messages: what was done, and where
    raw: bytes
    name: str  # which the refusal must contain; empty: any refusal will do


def refusal(raw: bytes, key: str) -> str | None:
    """Why the check refuses the file; None: it does not."""
    try:
        found = check_file(read_answer_file(raw), key)
    except ReceiptError as error:
        return str(error)
    return None if found.answer is AnswerState.EQUAL else "; ".join(each.text for each in found.changes)


def forgeries(raw: bytes) -> Iterator[Forgery]:
    if raw.lstrip()[:1] in (b"{", b"["):
        value = _read(raw.decode())
        over_grpc = b"receipt_json" in raw or b"receiptJson" in raw  # whose fractions have 4 bytes
        for what, forged, name in _of_value(value, removing=True, smallest=not over_grpc):
            yield Forgery(what, json.dumps(forged).encode(), name)
        return
    events = raw.decode().split("\n\n")[:-1]
    last = max(number for number, event in enumerate(events) if "data: {" in event)
    for number, event in enumerate(events):
        head, _, data = event.rpartition("data: ")
        if not data.startswith("{"):
            continue

        def with_event(text: str, number: int = number) -> bytes:
            return "\n\n".join([*events[:number], *([text] if text else []), *events[number + 1 :], ""]).encode()

        where = f"event {number}"
        for what, forged, name in _of_value(json.loads(data), removing=False):
            yield Forgery(f"{where}: {what}", with_event(f"{head}data: {json.dumps(forged)}"), name)
        if data == PING:  # says nothing
            continue
        yield Forgery(f"{where} twice", with_event(f"{event}\n\n{event}"), "")
        yield Forgery(f"{where} removed", with_event(""), "")
        yield Forgery(f"{where} has another name", with_event(f"event: error\ndata: {data}"), "")
        if number < last:
            yield Forgery(f"{where} is followed by an end", with_event(f"{event}\n\ndata: [DONE]"), "")


def _read(text: str) -> Any:
    """A JSON value, or several as a list."""
    found, at = list[Any](), 0
    while at < len(text):
        value, at = json.JSONDecoder().raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found[0] if len(found) == 1 else found


def _of_value(value: Any, *, removing: bool, smallest: bool = True) -> Iterator[tuple[str, Any, str]]:
    for number, (path, node) in enumerate(list(_nodes(value, ()))):
        if isinstance(node, dict) and node:
            yield f"{path} has one more member", _put(value, (*path, "forged"), "x"), ""
        elif isinstance(node, list) and node:
            yield f"{path} has one more item", _appended(value, path, node[-1]), ""
        else:
            yield f"{path} is another", _put(value, path, _other(node, smallest=smallest)), _name(path)
        kind = KINDS[number % len(KINDS)]
        if path and type(node) is not type(kind) and (smallest or kind is not True):  # to protobuf, true is enum 1
            yield f"{path} is {kind!r}", _put(value, path, kind), ""
        if removing and path:
            yield f"{path} is missing", _without(value, path), ""


def _nodes(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    members: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _nodes(member, (*path, key))


def _other(leaf: Any, *, smallest: bool) -> Any:
    match leaf:
        case None:
            return "x"
        case bool():
            return not leaf
        case int():
            return leaf + 1
        case float():
            return math.nextafter(leaf, math.inf) if smallest else leaf * 1.001 + 0.001
        case str():
            return leaf[:-1] + ("y" if leaf[-1] == "x" else "x") if leaf else "x"
        case list():
            return [{}]
    return {"x": None}


def _name(path: Path) -> str:
    """The name that the refusal must hold: the last one of the path, or that of a larger field around it."""
    names = [each for each in path if isinstance(each, str)]
    if not names or names[-1] in PLACES or names[-1] in ("receipt_json", "receiptJson"):
        return ""
    if "receipt" in names:
        return names[-1] if names[-1] in ("key", "signature") else "receipt"
    if names[-1] == "delta" and "choices" in names:
        return "message"
    return next((each for each in names if each in LARGER), names[-1])


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    forged = copy.deepcopy(value)
    node = forged
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = new
    return forged


def _appended(value: Any, path: Path, item: Any) -> Any:
    forged = copy.deepcopy(value)
    node = forged
    for step in path:
        node = node[step]
    node.append(copy.deepcopy(item))
    return forged


def _without(value: Any, path: Path) -> Any:
    forged = copy.deepcopy(value)
    node = forged
    for step in path[:-1]:
        node = node[step]
    del node[path[-1]]
    return forged
