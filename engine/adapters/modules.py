"""The modules of a model that an adapter can change: where each stands in the products that the kernels compute.

A model's own list of tensors (`engine/model/layout.py`) says it, so every family's names are right by themselves."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from baton_kernels.deltas import MOST_PARTS, PRODUCTS, expert_place
from engine.model.config import ModelConfig
from engine.model.layout import TensorSource, fused_tensors

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"  # a model's edges

_ATTENTION = ("qkv", "o")
_LAYER = re.compile(r"model\.layers\.(\d+)\.self_attn\.")
_EXPERT = re.compile(r"(\d+)\.(experts_)?(gate_up|down)")
_PRODUCT = re.compile(rf"(\d+)\.({'|'.join(PRODUCTS)})")


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """One product of a layer or of an expert: its parts by the names of their modules, in the order of its outputs."""

    index: int  # its place in an adapter's deltas, or in those of experts
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
            continue  # it is an expert
        index = int(place[1]) * len(PRODUCTS) + PRODUCTS.index(place[2])
        found.append(AdaptedProduct(index, _by_module(fused.sources), fused.columns))
    return tuple(found)


def expert_products(config: ModelConfig) -> tuple[AdaptedProduct, ...]:
    """The products of experts, each a product of its own. Experts whose gate and up are one tensor have none."""
    row, found = config.row.experts, list[AdaptedProduct]()
    for fused in fused_tensors(config) if row is not None and len(row.gate_up) > 1 else ():
        place = _EXPERT.fullmatch(fused.name)
        if place is None or not config.has_experts(int(place[1])):
            continue
        each = len(fused.sources) // (fused.copies or 1)
        for number in range(fused.copies or 1):
            expert = number if place[2] else config.experts
            sources = fused.sources[number * each : (number + 1) * each]
            index = expert_place(int(place[1]), expert, config.experts, down=place[3] == "down")
            found.append(AdaptedProduct(index, _by_module(sources), fused.columns))
    return tuple(found)


def _by_module(sources: Iterable[TensorSource]) -> dict[str, TensorSource]:
    return {source.name.removesuffix(".weight"): source for source in sources}


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
