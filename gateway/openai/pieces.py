"""Large JSON values in pieces: they are rendered slice by slice in a thread, and sent as they are.

An answer may hold a list of a hundred megabytes. To encode it at once, or only to copy it, would hold the event loop
up; here no step on the loop touches more than one piece."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeVar

import msgspec

Item = TypeVar("Item")

MARK = b"\xff"  # around the number of a value that stands elsewhere; UTF-8 has no such byte
JOINED = 1024  # small items in one piece


class JsonPieces:
    """A JSON value that is encoded already. It stands anywhere in a value for `encode_pieces`."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    @classmethod
    def of_items(cls, items: Sequence[bytes]) -> "JsonPieces":
        """A list; each piece holds some of its items, without brackets."""
        parts = [part for item in items for part in (b",", item)]
        return cls([b"[", *parts[1:], b"]"])


def joined_pieces(items: Sequence[bytes]) -> JsonPieces:
    """A list of many small items in few pieces: each piece is a write of its own."""
    return JsonPieces.of_items([b",".join(items[at : at + JOINED]) for at in range(0, len(items), JOINED)])


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
