"""Large JSON values in pieces: they are rendered slice by slice in a thread, and sent as they are.

An answer may hold a list of a hundred megabytes. To encode it at once, or only to copy it, would hold the event loop
up; here no step on the loop touches more than one piece."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

Item = TypeVar("Item")

MARK = b"\xff"  # around the number of a value that stands elsewhere; UTF-8 has no such byte
PIECE_BYTES = 64 * 1024  # size at which a piece of small items is full: each piece is a write of its own


class JsonPieces:
    """A JSON value that is encoded already. It stands anywhere in a value for `encode_pieces`."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    @classmethod
    def of_items(cls, items: Sequence[bytes]) -> "JsonPieces":
        """A list; each piece holds some of its items, without brackets."""
        parts = [part for item in items for part in (b",", item)]
        return cls([b"[", *parts[1:], b"]"])

    def behind(self, items: Sequence[bytes]) -> "JsonPieces":
        """The list with items before its own; each holds some, without brackets."""
        if not items:
            return self
        first, *rest = self.parts
        before = [part for item in items for part in (item, b",")]
        if first == b"[]":
            before.pop()
        return JsonPieces([b"[", *before, first[1:], *rest])


class GrowingList:
    """A list of many small items that are encoded as they come, so that nothing at its end takes long."""

    def __init__(self) -> None:
        self._parts, self._last = list[bytes](), [b"["]
        self._bytes = 0  # size of the last part
        self._empty = True

    def add(self, items: bytes) -> None:
        """Some items, without brackets."""
        if not items:
            return
        if not self._empty:
            self._last.append(b",")
        self._empty = False
        self._last.append(items)
        self._bytes += len(items)
        if self._bytes >= PIECE_BYTES:
            self._parts.append(b"".join(self._last))
            self._last, self._bytes = [], 0

    def pieces(self) -> Any:
        """The list as far as it has grown: JsonPieces, which stand where a type wants a list."""
        return JsonPieces([*self._parts, b"".join([*self._last, b"]"])])


def encode_pieces(value: object) -> list[bytes]:
    """The JSON of a value, in pieces whose order is that of the text."""
    found = list[JsonPieces]()

    def place(part: object) -> msgspec.Raw:
        if not isinstance(part, JsonPieces):
            raise TypeError(f"{type(part).__name__} is no JSON value")
        found.append(part)
        return msgspec.Raw(b"%b%d%b" % (MARK, len(found) - 1, MARK))

    text = msgspec.json.encode(value, enc_hook=place)
    if not found:
        return [text]
    first, *rest = text.split(MARK)
    pieces = [first]
    for number, after in zip(rest[::2], rest[1::2], strict=True):
        pieces += [*found[int(number)].parts, after]
    return pieces


async def in_thread(slices: Iterator[Item]) -> AsyncIterator[Item]:
    """Yields what the iterator yields; each item is made in a thread."""
    end = object()
    while (item := await asyncio.to_thread(next, slices, end)) is not end:
        yield item  # type: ignore[misc]
