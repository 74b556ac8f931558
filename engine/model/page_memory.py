"""The page pool as the CPU kernels address it, and the layout of a page of CPU weights."""

from dataclasses import dataclass

import baton_kernels
from engine.model.weights import Bytes, Weights
from engine.pool.bands import ONE_BAND, LayerBands, bands_of
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
    bands: LayerBands = ONE_BAND

    def layer(self, index: int) -> int:
        """Byte offset of a layer inside a page of its band."""
        return self.first_byte + self.bands.place(index)[1] * self.layer_bytes

    def band(self, index: int) -> int:
        """The band of a layer."""
        return self.bands.place(index)[0]


def layer_bytes(weights: Weights, page_tokens: int) -> int:
    """Bytes of one layer in one page: keys and values of all KV heads."""
    config = weights.config
    return baton_kernels.layer_bytes(weights.path, page_tokens, config.kv_heads, config.head_dim, weights.kv)


def page_layout(weights: Weights, draft: Weights | None, page_tokens: int, bands: LayerBands = ONE_BAND) -> PageShape:
    models = [each for each in (weights, draft) if each is not None]
    return PageShape(page_tokens, tuple(_segment(each, page_tokens, bands) for each in models))


def layer_bands(weights: Weights, draft: Weights | None, *, banded: bool = True) -> LayerBands:
    """How the model's layers lie in pages; not `banded`: every page has all of them. A draft needs all pages: it may
    read a text long after the model did."""
    found = ONE_BAND if draft is not None else bands_of(weights.config.windows)
    return found if banded or found.count == 1 else ONE_BAND


def page_memory(
    pool: Bytes, layout: PageShape, page_tokens: int, *, segment: int, bands: LayerBands = ONE_BAND
) -> PageMemory:
    """The pool as the model of this segment sees it."""
    size, first_byte = layout.segments[segment].layer_bytes, layout.first_byte(segment)
    return PageMemory(pool, page_tokens, layout.page_bytes, size, first_byte, bands)


def _segment(weights: Weights, page_tokens: int, bands: LayerBands) -> PageSegment:
    tiles, dtype = baton_kernels.tiles(weights.path, weights.kv)
    return kv_segment(
        weights.model_hash,
        layers=bands.page_layers(weights.config.layers),
        layer_bytes=layer_bytes(weights, page_tokens),
        tiles=tiles,
        dtype=dtype,
        heads=weights.config.kv_heads,
        head_dim=weights.config.head_dim,
    )
