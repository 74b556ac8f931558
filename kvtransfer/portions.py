"""A portion: the frames of several spans together, and behind them the bytes of these spans in the same order.

Step 4 of a request's life. One look at the frames of a portion tells a receiver where all of its bytes go. Over TCP
they follow on the same connection; over NCCL they go over NCCL. Parsing raises `Malformed`."""

import struct
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kvtransfer.frames import VERSION, Malformed
from kvtransfer.transfer import Span
from mesh.messages.page_shape import PageShape

_COUNT = struct.Struct("<4sI")
_MAGIC, _FRAME_MAGIC = b"BPOR", b"BPAG"
_FRAME = struct.Struct("<4sHxx32sIIIIQQ")
_COLUMNS = ("magic", "version", "ticket", "page", "first_layer", "layers", "round", "length")
_FRAMES = np.dtype(  # the same for many
    {
        "names": [*_COLUMNS, "checksum"],
        "formats": ["S4", "<u2", "S32", "<u4", "<u4", "<u4", "<u4", "<u8", "<u8"],
        "offsets": [0, 4, 8, 40, 44, 48, 52, 64, 56],
        "itemsize": _FRAME.size,
    }
)
_PLACE = attrgetter("index", "first_layer", "layers")
COUNT_BYTES, FRAME_BYTES = _COUNT.size, _FRAME.size
MOST_FRAMES = 1 << 16


class Frame(NamedTuple):
    """One span: where its bytes belong."""

    ticket: bytes
    page: int  # index of the prompt's page
    first_layer: int
    layers: int
    round: int
    checksum: int
    length: int  # bytes


class PackedFrames:
    """The frames of one write. A portion is some of them in a row, with their checksums."""

    def __init__(self, ticket: bytes, spans: Sequence[Span], round: int, shape: PageShape) -> None:
        index, first, layers = np.fromiter(chain.from_iterable(map(_PLACE, spans)), np.int64).reshape(-1, 3).T
        lengths = [shape.place(span.first_layer, span.layers)[1] for span in spans]
        self.lengths = lengths
        self._rows = np.zeros(len(spans), _FRAMES)
        values = _FRAME_MAGIC, VERSION, ticket, index, first, layers, round, lengths
        for name, value in zip(_COLUMNS, values, strict=True):
            self._rows[name] = value

    def portion(self, begin: int, end: int, sums: Sequence[int]) -> bytes:
        self._rows["checksum"][begin:end] = sums
        return _COUNT.pack(_MAGIC, end - begin) + self._rows[begin:end].tobytes()


def pack_portion(ticket: bytes, spans: Sequence[Span], round: int, sums: Sequence[int], shape: PageShape) -> bytes:
    return PackedFrames(ticket, spans, round, shape).portion(0, len(spans), sums)


def portion_bytes(head: bytes, most: int = MOST_FRAMES) -> int:
    """How many bytes of frames follow the first bytes of a portion."""
    magic: bytes
    count: int
    magic, count = _COUNT.unpack(head)
    if magic != _MAGIC or not 0 < count <= most:
        raise Malformed(f"a portion begins with {head!r}")
    return count * FRAME_BYTES


def unpack_portion(raw: bytes, shape: PageShape) -> list[Frame]:
    rows = list(_FRAME.iter_unpack(raw))
    for magic, version in {row[:2] for row in rows}:
        if magic != _FRAME_MAGIC:
            raise Malformed(f"a frame begins with {magic!r} instead of {_FRAME_MAGIC!r}")
        if version != VERSION:
            raise Malformed(f"transport version {version}, ours is {VERSION}: run one release on both tiers")
    frames = [Frame._make(row[2:]) for row in rows]
    for first_layer, layers, length in {(frame.first_layer, frame.layers, frame.length) for frame in frames}:
        if not 0 <= first_layer < first_layer + layers <= shape.layers:
            raise Malformed(f"frame names layers {first_layer}+{layers} of {shape.layers}")
        if length != (wanted := shape.place(first_layer, layers)[1]):
            raise Malformed(f"frame of {layers} layers has {length} bytes instead of {wanted}")
    return frames


def as_spans(frames: Sequence[Frame]) -> list[Span]:
    """Spans without page ids, which only the landing knows."""
    return [Span(frame.page, 0, 0, frame.first_layer, frame.layers) for frame in frames]
