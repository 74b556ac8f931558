"""The bytes that the two halves of our transports exchange: handles, greeting and welcome.

All have fixed sizes, are little endian and begin with a magic and a version, so that a receiver refuses a stranger
after `GREETING_BYTES` at most. Nothing here is trusted: parsing raises `Malformed`, and the receiver closes the socket.
A token is the secret that lets one writer incarnation in; it travels in the handle, over the control stream."""

import struct
from dataclasses import dataclass
from typing import Any

from mesh.messages.page_shape import PageSegment, PageShape
from mesh.messages.page_shape_checks import MOST_NAME_LETTERS, MOST_SEGMENTS, shape_problem

VERSION = 4
TOKEN_BYTES = 16
TICKET_BYTES = 32

_HANDLE = struct.Struct("<4sHxx16sQ")
_NAMES = tuple(MOST_NAME_LETTERS)  # fields with a segment's names: kind, content, tiles, dtype
_SEGMENT = struct.Struct("<" + "".join(f"{most}s" for most in MOST_NAME_LETTERS.values()) + "IQIIII")
_SHAPE = struct.Struct(f"<I{MOST_SEGMENTS * _SEGMENT.size}s")  # unused segments are zero
_UNUSED = _SEGMENT.unpack(bytes(_SEGMENT.size))
_GREETING = struct.Struct(f"<4sHxx16sQQ{_SHAPE.size}s")
_WELCOME = struct.Struct(f"<4sHH20xQQ{_SHAPE.size}s")

GREETING_BYTES = _GREETING.size
WELCOME_BYTES = _WELCOME.size


class Malformed(ValueError):
    """Bytes that no baton worker of this version sends."""


@dataclass(frozen=True, slots=True)
class PoolHandle:
    """How a writer reaches a receiver: valid for one incarnation of each."""

    kind: bytes  # four letters that name the transport
    token: bytes
    receiver: int  # receiver's incarnation
    address: str

    def pack(self) -> bytes:
        return _HANDLE.pack(self.kind, VERSION, self.token, self.receiver) + self.address.encode()

    @classmethod
    def unpack(cls, raw: bytes) -> "PoolHandle":
        if len(raw) <= _HANDLE.size:
            raise Malformed(f"a transport handle of {len(raw)} bytes is too short")
        kind, version, token, receiver = _HANDLE.unpack_from(raw)
        _check_version(version)
        return cls(kind, token, receiver, raw[_HANDLE.size :].decode(errors="strict"))


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first bytes that a writer sends."""

    token: bytes
    writer: int  # writer's incarnation
    receiver: int  # incarnation that the writer wants to reach
    shape: PageShape

    def pack(self) -> bytes:
        return _GREETING.pack(b"BHEL", VERSION, self.token, self.writer, self.receiver, pack_shape(self.shape))

    @classmethod
    def unpack(cls, raw: bytes | bytearray) -> "Greeting":
        magic, version, token, writer, receiver, shape = _unpack(_GREETING, raw)
        _check_magic(magic, b"BHEL")
        _check_version(version)
        return cls(token, writer, receiver, unpack_shape(shape))


@dataclass(frozen=True, slots=True)
class Welcome:
    """The receiver's answer to a writer whose token it knows. `accepted` is false only when pages of the writer's shape
    cannot be written into its own."""

    accepted: bool
    receiver: int
    pages: int
    shape: PageShape

    def pack(self) -> bytes:
        return _WELCOME.pack(b"BWEL", VERSION, self.accepted, self.receiver, self.pages, pack_shape(self.shape))

    @classmethod
    def unpack(cls, raw: bytes | bytearray) -> "Welcome":
        magic, version, accepted, receiver, pages, shape = _unpack(_WELCOME, raw)
        _check_magic(magic, b"BWEL")
        _check_version(version)
        return cls(bool(accepted), receiver, pages, unpack_shape(shape))


def pack_shape(shape: PageShape) -> bytes:
    if problem := shape_problem(shape):
        raise ValueError(problem)
    return _SHAPE.pack(shape.page_tokens, b"".join(map(_pack_segment, shape.segments)))


def unpack_shape(raw: bytes) -> PageShape:
    page_tokens, segments = _SHAPE.unpack(raw)
    used = [segment for segment in _SEGMENT.iter_unpack(segments) if segment != _UNUSED]
    try:
        shape = PageShape(page_tokens, tuple(map(_unpack_segment, used)))
    except UnicodeDecodeError as error:
        raise Malformed("a name of a page's segment is not text") from error
    if problem := shape_problem(shape):
        raise Malformed(problem)
    return shape


def _pack_segment(segment: PageSegment) -> bytes:
    names = [getattr(segment, name).encode() for name in _NAMES]
    shard = segment.heads, segment.first_head, segment.shard_heads, segment.head_dim
    return _SEGMENT.pack(*names, segment.layers, segment.layer_bytes, *shard)


def _unpack_segment(fields: tuple[Any, ...]) -> PageSegment:
    kind, content, tiles, dtype = (name.rstrip(b"\0").decode("ascii") for name in fields[: len(_NAMES)])
    layers, layer_bytes, *shard = fields[len(_NAMES) :]
    return PageSegment(kind, content, layers, layer_bytes, tiles, dtype, *shard)


def _unpack(layout: struct.Struct, raw: bytes | bytearray) -> tuple[Any, ...]:
    if len(raw) != layout.size:
        raise Malformed(f"{len(raw)} bytes where {layout.size} were expected")
    return layout.unpack(raw)


def _check_magic(found: bytes, wanted: bytes) -> None:
    if found != wanted:
        raise Malformed(f"begins with {found!r} instead of {wanted!r}")


def _check_version(version: int) -> None:
    if version != VERSION:
        raise Malformed(f"transport version {version}, ours is {VERSION}: run one release on both tiers")
