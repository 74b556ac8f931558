"""The bytes of a receipt that its signature covers, and a reader that refuses whatever could be read in two ways.

A receipt is JSON of objects, lists, texts, true, false, null and whole numbers below 2^53. It has no fraction, since
JSON libraries spell those differently: a fraction is a text. Its signed bytes are the object without `signature`, with
sorted names, in ASCII, without spaces. An object with the same name twice is no receipt."""

import json
import re
from collections.abc import Mapping
from typing import Any

FORMAT = "baton-receipt/1"
SIGNATURE = "signature"
MAX_BYTES = 1 << 20  # size of the largest receipt
MAX_FILE_BYTES = 1 << 26  # size of the largest file that holds a receipt, for instance within a whole answer
MAX_DEPTH = 8
NO_RECEIPT = "the file is no receipt, and no answer that carries one in its member `receipt`"
LARGEST = 2**53 - 1  # whole numbers that every JSON library keeps
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

Json = dict[str, Any]


class ReceiptError(Exception):
    """A file holds no receipt, or one that cannot be trusted; the message is for users."""


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """The signed bytes. ReceiptError where the receipt could be read in two ways."""
    signed = {name: value for name, value in receipt.items() if name != SIGNATURE}
    _check(signed, "the receipt", MAX_DEPTH)
    data = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
    if len(data) > MAX_BYTES:
        raise ReceiptError(f"the receipt has {len(data)} bytes; at most {MAX_BYTES} are allowed")
    return data


def read_receipt(raw: bytes) -> Json:
    """The receipt in a file: alone, or within a whole answer of any of the gateway's APIs."""
    if len(raw) > MAX_FILE_BYTES:
        raise ReceiptError(f"the file has {len(raw)} bytes; at most {MAX_FILE_BYTES} are read")
    return checked(_carried(exactly(raw)))


def exactly(raw: bytes | str) -> Any:
    """The JSON of a file, in which nothing stands twice."""
    try:
        return json.loads(raw, object_pairs_hook=unique)
    except ReceiptError:
        raise
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"the file is not JSON: {error}") from None


def checked(value: Any) -> Json:
    """The value, if it is a receipt of this format."""
    if not isinstance(value, dict) or "format" not in value:
        raise ReceiptError(NO_RECEIPT)
    if value["format"] != FORMAT:
        raise ReceiptError(f"the receipt's format is {str(value['format'])[:64]!r}; this version reads {FORMAT!r}")
    canonical(value)
    return value


def _carried(value: Any) -> Any:
    """The receipt that an answer carries: in its member `receipt`, or in `meta_info`, also of one answer of a batch."""
    for answer in value if isinstance(value, list) else [value]:
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        for holder in (answer, meta):
            if isinstance(holder, dict) and isinstance(holder.get("receipt"), dict):
                return holder["receipt"]
    return value


def unique(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ReceiptError(f"the file has {twice[:64]!r} twice in one object, so it can be read in two ways")
    return found


def _check(value: Any, where: str, levels: int) -> None:
    if not levels:
        raise ReceiptError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for name, member in value.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ReceiptError(f"{where} has the name {str(name)[:64]!r}; names are a-z, 0-9 and _")
            _check(member, f"`{name}`", levels - 1)
    elif isinstance(value, list):
        for member in value:
            _check(member, where, levels - 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > LARGEST:
            raise ReceiptError(f"{where} has a whole number above 2^53, which is written as a text")
    elif value is not None and not isinstance(value, str | bool):
        raise ReceiptError(f"{where} has a fraction, which is written as a text")
