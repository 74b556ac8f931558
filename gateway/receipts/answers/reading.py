"""JSON of answers: numbers that are equal become equal, whatever library wrote them.

A gateway reads what it is about to send, perhaps many megabytes, so `loads_slowly` reads it in small steps: no other
thread waits for more than one of them."""

import json
import re
from typing import Any

from gateway.receipts.answers.fields import OPENED, SCORES, LongList
from gateway.receipts.canonical import LARGEST, ReceiptError, unique

LARGE_CHARACTERS = 1 << 17
_LONG = 64  # items of a list that is kept as a hash
_KEPT = {"choices", "output", "content", "tool_calls", ""}  # lists that stay lists
_SPACE = re.compile(r"[ \t\r\n]*")

Json = dict[str, Any]


def loads(text: str) -> Any:
    """ReceiptError where the text is no JSON, or could be read in two ways."""
    try:
        return _DECODER.decode(text)
    except ReceiptError:
        raise
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"the file is not JSON: {error}") from None


def loads_sent(text: str) -> Any:
    """The same for what this gateway writes. A model may have written a name twice: then the last one counts here, and
    a reader of the file is told."""
    return _SENT.decode(text)


def loads_slowly(text: str) -> Any:
    """The same in small steps. Long lists of small things are hashes."""
    return _walk(text, 0, "")[0] if len(text) > LARGE_CHARACTERS else loads_sent(text)


def _fraction(text: str) -> float | int:
    """JavaScript writes 1 for 1.0."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= LARGEST else number


def _no_number(text: str) -> Any:
    raise ReceiptError(f"the file is not JSON: {text} is no number")


_SENT = json.JSONDecoder(parse_float=_fraction)
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_float=_fraction, parse_constant=_no_number)


def _walk(text: str, at: int, name: str) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. What is one field is read at once, except for long lists."""
    if text[at] == "{" and name in OPENED:
        return _walk_object(text, _behind_space(text, at + 1), name)
    if text[at] == "[":
        return _walk_list(text, _behind_space(text, at + 1), name)
    return _SENT.raw_decode(text, at)


def _walk_object(text: str, at: int, name: str) -> tuple[Json, int]:
    found: Json = {}
    while text[at] != "}":
        key, at = _SENT.raw_decode(text, at)
        at = _behind_space(text, _behind_space(text, at) + 1)
        member = f"{name}.{key}" if f"{name}.{key}" in SCORES else key
        found[key], at = _walk(text, at, member)
        at = _behind_comma(text, at)
    return found, at + 1


def _walk_list(text: str, at: int, name: str) -> tuple[Any, int]:
    items, long = list[Any](), None
    while text[at] != "]":
        item, at = _walk(text, at, "") if name in _KEPT else _SENT.raw_decode(text, at)
        items.append(item)
        if len(items) == _LONG and name not in _KEPT:
            long = long or LongList()
            long.extend(items)
            items.clear()
        at = _behind_comma(text, at)
    if long is None:
        return items, at + 1
    long.extend(items)
    return long, at + 1


def _behind_comma(text: str, at: int) -> int:
    at = _behind_space(text, at)
    return _behind_space(text, at + 1) if text[at] == "," else at


def _behind_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
