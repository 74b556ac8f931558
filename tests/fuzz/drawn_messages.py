"""Messages of the mesh with drawn fields, and their way to the receiver: encoded, perhaps broken, decoded.

Values are mostly plausible, so that messages pass the first checks; the others are the ends of their types, numbers
that are none, names that cannot be printed and bytes of wrong lengths."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mesh.messages.codec import CodecError, Envelope
from mesh.messages.jobs import Ticket
from mesh.messages.message import Message
from mesh.messages.page_shape import PageShape
from tests.fuzz.cases import ODD_INTS, chance, mutated
from tests.fuzz.drawn_shapes import OURS, drawn_shape, odd_shape

TICKETS = tuple(Ticket(request, attempt, bytes([attempt]) * 16) for request in (1, 2, 3) for attempt in (1, 2))
_FLOATS = (0.0, 0.5, 1.0, 2.0, 1e3, -0.0, -1.0, 1e15, 1e308, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "m",
    "class a",
    "host",
    "tcp",
    "127.0.0.1:7001",
    "shm",
    "",
    "x" * 300,
    "\0",
    "\u2028",
    "é",
    "{}",
    '{"a": 1}',
    "[",
)
_BYTES = (b"", b"\0", bytes(16), bytes(32), b"x" * 33, b"\xff" * 64, b"x" * 65, b"\0\0\x80?" * 3)
Draw = Callable[[Random], Any]


def drawn(rng: Random, cls: type) -> Any:
    """An object of this class with all fields drawn."""
    return _drawer(cls)(rng)


def odd(rng: Random, message: Any) -> Any:
    """The message with one field drawn anew."""
    if not fields(message):
        return message
    name = rng.choice([field.name for field in fields(message)])
    return replace(message, **{name: _fields(type(message))[name](rng)})


def over_the_wire(rng: Random, envelope: Envelope, message: Message, broken: float = 0.3) -> Message | None:
    """The message as its receiver decodes it; None: it is refused on the way."""
    try:
        raw = envelope.encode(message)
        return envelope.decode(mutated(rng, raw) if chance(rng, broken) else raw)
    except CodecError:
        return None


@cache
def _fields(cls: type) -> dict[str, Draw]:
    hints = get_type_hints(cls)
    return {field.name: _drawer(hints[field.name]) for field in fields(cls)}


@cache
def _drawer(hint: Any) -> Draw:
    if get_origin(hint) in (Union, UnionType):
        inner = [_drawer(each) for each in get_args(hint) if each is not NoneType]
        return lambda rng: None if chance(rng, 0.3) else rng.choice(inner)(rng)
    if get_origin(hint) is tuple:
        item = _drawer(get_args(hint)[0])
        return lambda rng: tuple(item(rng) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    if hint is Ticket:
        return lambda rng: rng.choice(TICKETS)
    if hint is PageShape:
        return lambda rng: rng.choice((OURS, drawn_shape(rng), odd_shape(rng)))
    if is_dataclass(hint):
        return lambda rng: hint(**{name: draw(rng) for name, draw in _fields(hint).items()})
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = list(hint)
        return lambda rng: rng.choice(members)
    return _SCALARS[hint]


def _int(rng: Random) -> int:
    return rng.choice((0, 1, 2, 3, 4, 8, 100)) if chance(rng, 0.85) else rng.choice(ODD_INTS)


_SCALARS: dict[Any, Draw] = {
    int: _int,
    bool: lambda rng: chance(rng, 0.5),
    float: lambda rng: rng.choice(_FLOATS[:5] if chance(rng, 0.8) else _FLOATS),
    str: lambda rng: rng.choice(_TEXTS[:6] if chance(rng, 0.8) else _TEXTS),
    bytes: lambda rng: rng.choice(_BYTES),
}
