"""The frames of one portion: what an NCCL writer sends over its TCP connection before the bytes go over NCCL.

Both ends derive from the frames alone which blocks follow and in which order, so neither needs an answer."""

import struct
from collections.abc import Sequence

from kvtransfer.frames import FRAME_BYTES, Frame, Malformed
from kvtransfer.transfer import Span
from mesh.page_shape import PageShape

_COUNT = struct.Struct("<4sI")
COUNT_BYTES = _COUNT.size
MOST_FRAMES = 1 << 16


def pack_portion(ticket: bytes, spans: Sequence[Span], round: int, sums: Sequence[int], shape: PageShape) -> bytes:
    raw = bytearray(_COUNT.pack(b"BPOR", len(spans)))
    for span, checksum in zip(spans, sums, strict=True):
        length = shape.place(span.first_layer, span.layers)[1]
        raw += Frame(ticket, span.index, span.first_layer, span.layers, round, checksum, length).pack()
    return bytes(raw)


def portion_bytes(head: bytes) -> int:
    """How many bytes of frames follow the first bytes of a portion."""
    magic: bytes
    count: int
    magic, count = _COUNT.unpack(head)
    if magic != b"BPOR" or not 0 < count <= MOST_FRAMES:
        raise Malformed(f"a portion begins with {head!r}")
    return count * FRAME_BYTES


def unpack_portion(raw: bytes, shape: PageShape) -> list[Frame]:
    return [Frame.unpack(raw[at : at + FRAME_BYTES], shape) for at in range(0, len(raw), FRAME_BYTES)]


def as_spans(frames: Sequence[Frame]) -> list[Span]:
    """Spans without page ids, which only the landing knows."""
    return [Span(frame.index, 0, 0, frame.first_layer, frame.layers) for frame in frames]
