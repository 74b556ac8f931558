"""Weighs a large message before it is parsed: parsing runs in one piece, and its time grows with the fields, not with
the bytes. A message of 4 MiB may be one text, or two million empty messages that take a hundred times longer.

The walk lets the event loop run between its steps. A thread would not help: it takes the interpreter's lock for 5 ms
again and again, at each of the many places where gRPC gives it up."""

import asyncio
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

MOST_FIELDS = 50_000  # parsing this number of fields takes some 5 ms
PACKED_PER_FIELD = 32  # few, so that a prompt of a million ids passes; they take some 20 ms
_STEP = 1_000  # fields between two looks at the event loop
_VARINT, _FIXED64, _BYTES, _START, _END, _FIXED32 = range(6)
_CONTINUED = bytes(range(0x80, 0x100))  # bytes of a varint before its last one


class _Packed(Enum):
    VARINTS = "a list of varints as one field"


_Table = Mapping[int, Any]  # a message's length-delimited fields by number, where what they hold costs time


async def is_heavy(raw: bytes, descriptor: Any) -> bool:
    """Whether a message of this type has more than MOST_FIELDS fields, nested ones included. Malformed bytes are not
    heavy; the parser refuses them."""
    for fields in _counted(raw, descriptor):
        if fields > MOST_FIELDS:
            return True
        await asyncio.sleep(0)
    return False


def _counted(raw: bytes, descriptor: Any) -> Iterator[int]:
    """The number of fields so far, after every step and at the end."""
    fields = looked = 0
    # Messages that are not walked yet; three lists, because many tuples would set off the garbage collector.
    starts, ends, tables = [0], [len(raw)], [_table(descriptor)]
    try:
        while starts:
            at, end, table = starts.pop(), ends.pop(), tables.pop()
            while at < end:
                fields += 1
                if fields - looked >= _STEP:
                    looked = fields
                    yield fields
                tag, at = _varint(raw, at)
                kind = tag & 7
                if kind == _VARINT:
                    _, at = _varint(raw, at)
                elif kind == _BYTES:
                    length, at = _varint(raw, at)
                    held = table.get(tag >> 3)
                    if held is _Packed.VARINTS:
                        fields += len(raw[at : at + length].translate(None, _CONTINUED)) // PACKED_PER_FIELD
                    elif held is not None and length:
                        starts.append(at)
                        ends.append(at + length)
                        tables.append(_table(held))
                    at += length
                elif kind in (_FIXED64, _FIXED32):
                    at += 8 if kind == _FIXED64 else 4
                elif kind not in (_START, _END):
                    break
    except IndexError:
        pass
    yield fields


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number that begins here, and where it ends."""
    value, shift = raw[at], 7
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


@cache
def _table(descriptor: Any) -> _Table:
    found: dict[int, Any] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif field.is_repeated and field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_FLOAT):
            found[field.number] = _Packed.VARINTS
    return found
