"""What a page on a device holds: the model's layers and, behind them, its draft's. Both tiers must have it alike."""

from dataclasses import replace
from itertools import accumulate

from baton_kernels.triton import GpuPageShape
from engine.cuda.weights import DeviceWeights


def page_shapes(weights: DeviceWeights, draft: DeviceWeights | None, page_tokens: int) -> tuple[GpuPageShape, ...]:
    """Each model's share; `page_bytes` of every one is the whole page's."""
    configs = [one.config for one in (weights, draft) if one is not None]
    alone = [GpuPageShape(config.layers, config.kv_heads, config.head_dim, page_tokens) for config in configs]
    ends = list(accumulate(one.page_bytes for one in alone))
    return tuple(
        replace(one, first_byte=end - one.page_bytes, other_bytes=ends[-1] - one.page_bytes)
        for one, end in zip(alone, ends, strict=True)
    )


def layout_name(weights: DeviceWeights, draft: DeviceWeights | None, page_tokens: int) -> str:
    """What a draft wrote is of use only to the same draft, so its hash is part of the name."""
    names = [shape.name for shape in page_shapes(weights, draft, page_tokens)]
    return "+".join(names) if draft is None else f"{'+'.join(names)}-{draft.model_hash[:16]}"
