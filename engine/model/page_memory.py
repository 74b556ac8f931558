"""The page pool as the CPU kernels address it, and the layout of a page of CPU weights."""

from dataclasses import dataclass

import baton_kernels
from engine.model.weights import Bytes, Weights
from engine.pool.page_layout import kv_segment
from mesh.messages.page_shape import PageSegment, PageShape


@dataclass(frozen=True, slots=True)
class PageMemory:
    """The layers of one model in all pages of a pool."""

    pool: Bytes
    page_tokens: int
    page_bytes: int
    layer_bytes: int
    first_byte: int = 0  # byte offset of this model's layers inside a page

    def layer(self, index: int) -> int:
        """Byte offset of a layer inside a page."""
        return self.first_byte + index * self.layer_bytes


def layer_bytes(weights: Weights, page_tokens: int) -> int:
    """Bytes of one layer in one page: keys and values of all KV heads."""
    config = weights.config
    return baton_kernels.layer_bytes(weights.path, page_tokens, config.kv_heads, config.head_dim, weights.kv)


def page_layout(weights: Weights, draft: Weights | None, page_tokens: int) -> PageShape:
    models = [each for each in (weights, draft) if each is not None]
    return PageShape(page_tokens, tuple(_segment(each, page_tokens) for each in models))


def window_of(weights: Weights, draft: Weights | None) -> int:
    """Slots that a row may read, its own the last, in the layer that reads most; 0: all. A draft needs all pages: it
    may read a text long after the model did."""
    windows = weights.config.windows
    return max(windows) if windows and all(windows) and draft is None else 0


def page_memory(pool: Bytes, layout: PageShape, page_tokens: int, *, segment: int) -> PageMemory:
    """The pool as the model of this segment sees it."""
    size, first_byte = layout.segments[segment].layer_bytes, layout.first_byte(segment)
    return PageMemory(pool, page_tokens, layout.page_bytes, size, first_byte)


def _segment(weights: Weights, page_tokens: int) -> PageSegment:
    tiles, dtype = baton_kernels.tiles(weights.path, weights.kv)
    return kv_segment(
        weights.model_hash,
        layers=weights.config.layers,
        layer_bytes=layer_bytes(weights, page_tokens),
        tiles=tiles,
        dtype=dtype,
        heads=weights.config.kv_heads,
        head_dim=weights.config.head_dim,
    )
