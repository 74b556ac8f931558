"""The modules of a model that an adapter can change: where each stands in the products that the kernels compute.

A model's own list of tensors (`engine/model/layout.py`) says it, so every family's names are right by themselves."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from baton_kernels.deltas import MOST_PARTS, PRODUCTS
from engine.model.config import ModelConfig
from engine.model.layout import TensorSource, fused_tensors

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"  # a model's edges

_ATTENTION = ("qkv", "o")
_LAYER = re.compile(r"model\.layers\.(\d+)\.self_attn\.")
_PRODUCT = re.compile(rf"(\d+)\.({'|'.join(PRODUCTS)})")


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """One product of a layer: its parts by the names of their modules, in the order of its outputs."""

    index: int  # its place in an adapter's deltas
    parts: Mapping[str, TensorSource]
    inputs: int


def adapted_products(config: ModelConfig) -> tuple[AdaptedProduct, ...]:
    found = list[AdaptedProduct]()
    for fused in fused_tensors(config):
        place = _PRODUCT.fullmatch(fused.name)
        if place is None or len(fused.sources) > MOST_PARTS:
            continue
        if place[2] in _ATTENTION and config.latent is not None:
            continue  # its modules are joined with others
        if place[2] not in _ATTENTION and config.has_experts(int(place[1])):
            continue  # experts are computed for the rows that chose them, and take no deltas
        parts = {source.name.removesuffix(".weight"): source for source in fused.sources}
        index = int(place[1]) * len(PRODUCTS) + PRODUCTS.index(place[2])
        found.append(AdaptedProduct(index, parts, fused.columns))
    return tuple(found)


def edge_modules(config: ModelConfig) -> dict[str, TensorSource]:
    """The modules at a model's edges. An adapter's A has an input for each token of the embedding."""
    return {
        EMBEDDING: TensorSource(f"{EMBEDDING}.weight", config.hidden, config.vocab),
        HEAD: TensorSource(f"{HEAD}.weight", config.vocab, config.hidden),
    }


def in_model(config: ModelConfig, module: str) -> bool:
    """Whether the model has this module, which may be one in which no adapter is computed."""
    names = (source.name for fused in fused_tensors(config) for source in fused.sources)
    layer = _LAYER.match(module)
    joined = config.latent is not None and layer is not None and int(layer[1]) < config.layers
    return joined or any(name.startswith(f"{module}.") for name in names)
