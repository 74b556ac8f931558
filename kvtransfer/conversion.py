"""Converts spans of pages from one form into another: other page sizes, other tile orders, a part of the heads.

Step 4 of a request's life, where the two tiers' pages differ. The writer converts, so that decode's pages hold exactly
the bytes that its own prefill would have written, and checksums are those of these bytes. Elements are moved, never
computed: every bit arrives as it was. `mesh/messages/page_fit.py` says which forms can be converted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.messages.page_fit import ELEMENT_BITS, SCALE_BYTES, end, head_bytes, page_obstacle
from mesh.messages.page_shape import KV, OPAQUE, PageSegment, PageShape

Bytes = npt.NDArray[np.uint8]
Elements = npt.NDArray[Any]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by bytes of an element


def pages_under(index: int, stop: int, *, source_tokens: int, target_tokens: int) -> range:
    """The writer's stretches that hold the tokens of the receiver's stretch `index`, of a prompt with `stop` tokens."""
    first = index * target_tokens
    last = min(first + target_tokens, stop) - 1
    if not 0 <= first <= last:
        raise IndexError(f"page {index} of {target_tokens} tokens lies behind a prompt of {stop} tokens")
    return range(first // source_tokens, last // source_tokens + 1)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Tokens that a page of the receiver and one of the writer have in common."""

    target: int  # first of them in the receiver's page
    source: int  # the same token in the writer's page
    tokens: int


class Conversion:
    """From pages of `source` into pages of `target`. ValueError where forms cannot be converted."""

    def __init__(self, source: PageShape, target: PageShape) -> None:
        if why := page_obstacle(source, target):
            raise ValueError(why)
        self.source, self.target = source, target

    def span(self, index: int, pages: Sequence[Bytes], first_layer: int, layers: int) -> Bytes:
        """These layers of the receiver's page of the stretch `index`. `pages` are the same layers of the writer's
        pages, from the one on that holds the page's first token. Slots for which no page is given are zero."""
        overlaps = self._overlaps(index, len(pages))
        whole = sum(each.tokens for each in overlaps) == self.target.page_tokens
        out = (np.empty if whole else np.zeros)(self.target.place(first_layer, layers)[1], np.uint8)
        fill(self.source, self.target, out, list(zip(overlaps, pages, strict=True)), first_layer, layers)
        return out

    def _overlaps(self, index: int, pages: int) -> list[Overlap]:
        size, most = self.source.page_tokens, self.target.page_tokens
        found, target, source = list[Overlap](), 0, index * most % size
        for _ in range(pages):
            tokens = min(size - source, most - target)
            if tokens <= 0:
                raise ValueError(f"{pages} pages of {size} tokens are more than a page of {most} takes")
            found.append(Overlap(target, source, tokens))
            target, source = target + tokens, 0
        return found


def fill(
    source: PageShape,
    target: PageShape,
    out: Bytes,
    pages: Sequence[tuple[Overlap, Bytes]],
    first_layer: int,
    layers: int,
) -> None:
    """Write these layers of the writer's pages into `out`, the same layers of a page of the receiver. Heads that the
    writer's shard lacks are left as they are."""
    begin = before = 0  # the segment's begin: its first byte in `out`, its first layer in the page
    starts = [0] * len(pages)  # its bytes in each of the writer's
    for mine, other in zip(source.segments, target.segments, strict=True):
        count = max(0, min(first_layer + layers, before + mine.layers) - max(first_layer, before))
        part = out[begin : begin + count * other.layer_bytes]
        size = count * mine.layer_bytes
        for place, (overlap, page) in enumerate(pages) if count else ():
            from_ = page[starts[place] : starts[place] + size]
            _move(mine, other, from_, part, overlap, source.page_tokens, target.page_tokens)
        starts = [start + size for start in starts]
        begin, before = begin + len(part), before + mine.layers


def _move(
    source: PageSegment, target: PageSegment, from_: Bytes, to: Bytes, overlap: Overlap, mine: int, other: int
) -> None:
    if source == target and mine == other:
        to[:] = from_
    elif source.kind == KV:
        _move_heads(source, target, from_, to, overlap, mine, other)
    else:
        assert source.kind != OPAQUE, "opaque segments are never converted"
        rows, size = slice(overlap.target, overlap.target + overlap.tokens), source.layer_bytes // mine
        to.reshape(-1, other, size)[:, rows] = from_.reshape(-1, mine, size)[
            :, overlap.source : overlap.source + overlap.tokens
        ]


def _move_heads(
    source: PageSegment, target: PageSegment, from_: Bytes, to: Bytes, overlap: Overlap, mine: int, other: int
) -> None:
    """Move the heads that both shards have, for the tokens that both pages have."""
    first, stop = max(source.first_head, target.first_head), min(end(source), end(target))
    ours = slice(first - source.first_head, stop - source.first_head)
    theirs = slice(first - target.first_head, stop - target.first_head)
    keys, values = _heads(source, from_, mine)
    to_keys, to_values = _heads(target, to, other)
    begin, place, tokens = overlap.source, overlap.target, overlap.tokens
    to_keys[:, theirs, place : place + tokens] = keys[:, ours, begin : begin + tokens]
    begin, place, pairs = begin // 2, place // 2, tokens // 2
    to_values[:, theirs, place : place + pairs] = values[:, ours, begin : begin + pairs]
    if source.dtype in SCALE_BYTES:
        begin, place = overlap.source, overlap.target
        from_scales, to_scales = _scales(source, from_, mine), _scales(target, to, other)
        to_scales[:, :, theirs, place : place + tokens] = from_scales[:, :, ours, begin : begin + tokens]


def _by_head(segment: PageSegment, raw: Bytes, tokens: int) -> Bytes:
    """These layers' bytes as [layers, keys and values, heads, bytes]."""
    return raw.reshape(-1, 2, segment.shard_heads, head_bytes(segment, tokens))


def _scales(segment: PageSegment, raw: Bytes, tokens: int) -> Elements:
    """The scales of codes [layers, keys and values, heads, tokens], as a view."""
    tile = tokens * segment.head_dim * ELEMENT_BITS[segment.dtype] // 8
    return _by_head(segment, raw, tokens)[..., tile:].view(_WORDS[SCALE_BYTES[segment.dtype]])


def _heads(segment: PageSegment, raw: Bytes, tokens: int) -> tuple[Elements, Elements]:
    """The keys [layers, heads, tokens, dim / 2, 2] and the values [layers, heads, tokens / 2, 2, dim] in these bytes,
    as views. Elements of half a byte come as the bytes that hold two of them: keys [..., dim / 2, 1], values
    [..., dim / 2]."""
    bits = ELEMENT_BITS[segment.dtype]
    half = _by_head(segment, raw, tokens)[..., : tokens * segment.head_dim * bits // 8].view(_WORDS[max(1, bits // 8)])
    return ORDERS[segment.tiles](half, tokens, segment.head_dim)


def _columns(half: Elements, tokens: int, dim: int) -> tuple[Elements, Elements]:
    """fp32-v1: keys [dim][tokens], values [tokens][dim]."""
    keys = half.reshape(*half.shape[:3], dim // 2, 2, tokens)[:, 0].transpose(0, 1, 4, 2, 3)
    return keys, half.reshape(*half.shape[:3], tokens // 2, 2, dim)[:, 1]


def _pairs(half: Elements, tokens: int, dim: int) -> tuple[Elements, Elements]:
    """pairs-v1 and codes-v1: keys [dim / 2][tokens][2], values [tokens / 2][dim][2]."""
    keys = half.reshape(*half.shape[:3], dim // 2, tokens, 2)[:, 0].transpose(0, 1, 3, 2, 4)
    return keys, half.reshape(*half.shape[:3], tokens // 2, dim, 2)[:, 1].transpose(0, 1, 2, 4, 3)


def _nibbles(half: Elements, tokens: int, dim: int) -> tuple[Elements, Elements]:
    """nibbles-v1: bytes of two elements of one token; keys [dim / 2][tokens], values [tokens / 2][dim / 2][2]."""
    keys = half.reshape(*half.shape[:3], dim // 2, tokens, 1)[:, 0].transpose(0, 1, 3, 2, 4)
    return keys, half.reshape(*half.shape[:3], tokens // 2, dim // 2, 2)[:, 1].transpose(0, 1, 2, 4, 3)


def _token_rows(half: Elements, tokens: int, dim: int) -> tuple[Elements, Elements]:
    """gpu-v1: keys and values [tokens][dim]."""
    keys = half.reshape(*half.shape[:3], tokens, dim // 2, 2)[:, 0]
    return keys, half.reshape(*half.shape[:3], tokens // 2, 2, dim)[:, 1]


ORDERS: dict[str, Callable[[Elements, int, int], tuple[Elements, Elements]]] = {
    "fp32-v1": _columns,
    "pairs-v1": _pairs,
    "codes-v1": _pairs,
    "nibbles-v1": _nibbles,
    "gpu-v1": _token_rows,
}
