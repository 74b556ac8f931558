"""The layout of a page on a device, and the shapes by which the GPU kernels address each model's layers in it."""

from dataclasses import replace

from baton_kernels.triton import GpuPageShape
from engine.cuda.weights import DeviceWeights
from engine.pool.page_layout import kv_segment
from mesh.messages.page_shape import PageSegment, PageShape


def page_layout(weights: DeviceWeights, draft: DeviceWeights | None, page_tokens: int) -> PageShape:
    models = [one for one in (weights, draft) if one is not None]
    return PageShape(page_tokens, tuple(_segment(one, page_tokens) for one in models))


def page_shapes(weights: DeviceWeights, draft: DeviceWeights | None, page_tokens: int) -> tuple[GpuPageShape, ...]:
    """The shape of the model's layers and that of its draft's. `page_bytes` of each is the size of the whole page."""
    layout = page_layout(weights, draft, page_tokens)
    models = [one for one in (weights, draft) if one is not None]
    return tuple(
        replace(
            _alone(one, page_tokens),
            first_byte=layout.first_byte(index),
            other_bytes=layout.page_bytes - layout.segments[index].total_bytes,
        )
        for index, one in enumerate(models)
    )


def _alone(weights: DeviceWeights, page_tokens: int) -> GpuPageShape:
    """The shape of a page that holds this model's layers only."""
    return GpuPageShape(weights.config.layers, weights.config.kv_heads, weights.config.head_dim, page_tokens)


def _segment(weights: DeviceWeights, page_tokens: int) -> PageSegment:
    shape = _alone(weights, page_tokens)
    tiles, dtype = shape.tiles
    return kv_segment(
        weights.model_hash,
        layers=shape.layers,
        layer_bytes=shape.layer_bytes,
        tiles=tiles,
        dtype=dtype,
        heads=shape.kv_heads,
        head_dim=shape.dim,
    )
