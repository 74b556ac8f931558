"""A portion: the frames of several spans together, and behind them the bytes of these spans in the same order.

Step 4 of a request's life. One look at the frames of a portion tells a receiver where all of its bytes go. Over TCP
they follow on the same connection; over NCCL they go over NCCL. Parsing raises `Malformed`."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kvtransfer.frames import VERSION, Malformed
from kvtransfer.transfer import Span
from mesh.page_shape import PageShape

_COUNT = struct.Struct("<4sI")
_MAGIC, _FRAME_MAGIC = b"BPOR", b"BPAG"
_FRAME = struct.Struct("<4sHxx32sIIIIQQ")
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


def pack_portion(ticket: bytes, spans: Sequence[Span], round: int, sums: Sequence[int], shape: PageShape) -> bytes:
    pack, raw = _FRAME.pack, [_COUNT.pack(_MAGIC, len(spans))]
    lengths = {each: shape.place(*each)[1] for each in {(span.first_layer, span.layers) for span in spans}}
    for span, checksum in zip(spans, sums, strict=True):
        first, layers = span.first_layer, span.layers
        place = span.index, first, layers, round
        raw.append(pack(_FRAME_MAGIC, VERSION, ticket, *place, checksum, lengths[first, layers]))
    return b"".join(raw)


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
    frames = [Frame(*row[2:]) for row in rows]
    for first_layer, layers, length in {(frame.first_layer, frame.layers, frame.length) for frame in frames}:
        if not 0 <= first_layer < first_layer + layers <= shape.layers:
            raise Malformed(f"frame names layers {first_layer}+{layers} of {shape.layers}")
        if length != (wanted := shape.place(first_layer, layers)[1]):
            raise Malformed(f"frame of {layers} layers has {length} bytes instead of {wanted}")
    return frames


def as_spans(frames: Sequence[Frame]) -> list[Span]:
    """Spans without page ids, which only the landing knows."""
    return [Span(frame.page, 0, 0, frame.first_layer, frame.layers) for frame in frames]
