"""A model's weights and a step's scratch memory as the native call of a layer takes them: addresses and numbers.

The arrays live as long as the model or the step that names them."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

import baton_kernels as kernels
from engine.model.config import ModelConfig
from engine.model.mixture import mixture_of
from engine.model.page_memory import PageMemory
from engine.model.weights import Floats, LayerWeights, Weights

_DENSE = ("gate_up", "gate_up_bias", "down", "down_bias")
_EXPERTS = ("router", "router_bias", "experts_gate_up", "experts_gate_up_bias", "experts_down", "experts_down_bias")
_MLP = (*_DENSE, *_EXPERTS)


def native_layer(index: int, layer: LayerWeights, config: ModelConfig, window: int) -> kernels.layer.Layer:
    """The addresses of a layer's weights, its window, and its number in the model."""
    addresses = {name: optional_address(getattr(layer, name)) for name in layer.__slots__ if name not in _MLP}
    return kernels.layer.Layer(mlp=_native_mlp(layer, config), window=window, index=index, **addresses)


def _native_mlp(layer: LayerWeights, config: ModelConfig) -> kernels.layer.MlpWeights:
    mixture = mixture_of(layer, config)
    if mixture is not None:
        return mixture.native()
    return kernels.layer.MlpWeights(
        activation=kernels.activation_index(config.activation),
        gated=config.row.tensors.gated,
        **{name: optional_address(getattr(layer, name)) for name in _DENSE},
    )


def native_step(weights: Weights, pages: PageMemory, scratch: Mapping[str, Floats]) -> kernels.layer.LayerStep:
    """The numbers and scratch memory that all layers of a step share, without the step's own rows."""
    config = weights.config
    return kernels.layer.LayerStep(
        path=kernels.PATHS.index(weights.path),
        kv=kernels.kv_index(weights.kv),
        norm=kernels.layer.NORMS.index(config.norm),
        wide_norms=config.qk_norm_width,
        eps=config.eps,
        scale=config.scale,
        attention_cap=config.attention_cap,
        embedding_scale=config.embedding_scale,
        residual_scale=config.residual_scale,
        logits_cap=config.logits_cap,
        qkv_limit=config.qkv_limit,
        latent=0 if config.latent is None else config.latent.rank,
        latent_eps=0.0 if config.latent is None else config.latent.eps,
        hidden=config.hidden,
        ffn=config.ffn,
        heads=config.heads,
        kv_heads=config.kv_heads,
        dim=config.head_dim,
        page_tokens=pages.page_tokens,
        max_positions=len(weights.cos),
        pool_bytes=pages.pool.size,
        page_stride=pages.page_bytes,
        pool=address(pages.pool),
        **{name: address(array) for name, array in scratch.items()},
    )


def optional_address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else address(array)


def address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("a kernel's array must be C-contiguous")
    at: int = array.__array_interface__["data"][0]
    return at
