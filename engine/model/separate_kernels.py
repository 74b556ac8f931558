"""A layer of the pass with a call of Python for every kernel, for any rows: what `Forward` does in one native call per
layer, with equal bits.

Two passes need it. A step in which few rows are sampled computes the rest of its last layer for these alone. And the
self-test and `baton verify` hand in a product of their own, and compare."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.model.config import ModelConfig
from engine.model.mixture import mix_one_by_one, mixture_of
from engine.model.page_memory import PageMemory
from engine.model.queries import Queries, add_adapters
from engine.model.rows import Ints, Rows
from engine.model.scratch import Scratch
from engine.model.weights import Bytes, Floats, LayerWeights, Weights


class Product(Protocol):
    """The matrix product. A caller may hand in another one: so `baton verify` shows that it notices a wrong one."""

    def __call__(
        self,
        x: Floats,
        packed: Bytes,
        out: Floats,
        bias: Floats | None = None,
        residual: Floats | None = None,
    ) -> object: ...


_Result = Callable[..., object]  # writes rows into its first argument, plus `residual` where it is given


class SeparateKernels:
    def __init__(self, weights: Weights, pages: PageMemory, product: Product, scratch: Scratch) -> None:
        self._weights, self._pages, self._product, self._scratch = weights, pages, product, scratch
        mixtures = (mixture_of(layer, weights.config) for layer in weights.layers)
        self._experts = [None if each is None else (each, each.native()) for each in mixtures]

    def keys_and_values(self, index: int, rows: Rows, page_of: NDArray[np.int64], x: Floats) -> Floats:
        """Writes the rows' keys and values into their pages; returns the rotated queries."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        layer, count = weights.layers[index], len(x)
        qkv = self._scratch.take("qkv", count, config.qkv_width)
        q = self._scratch.take("q", count, config.heads, config.head_dim)
        read = self.normed(x, layer.input_norm, layer.input_norm_bias)
        self._product(read, layer.qkv, qkv, bias=layer.qkv_bias)
        add_adapters(rows.adapted, index, "qkv", read, qkv)
        norms = normed_widths(config, layer, qkv)
        if config.latent is not None and layer.latent_norm is not None:
            kernels.share_latent(qkv, layer.latent_norm, config.heads, config.head_dim, config.latent.eps)
        if config.qkv_limit:
            kernels.clip(qkv, config.qkv_limit)
        write_rotated(
            weights, layer, norms, qkv, rows.slots, page_of, rows.offset_in_page, pages.page_tokens, pages.pool, q
        )
        return q

    def rest(self, index: int, queries: Queries, q: Floats, x: Floats) -> None:
        """Attention, its output product and the feed-forward block; x becomes the next layer's input."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        layer, count = weights.layers[index], len(x)
        attended = self._scratch.take("attended", count, config.q_width)
        kernels.attention(
            weights.path,
            q,
            pages.pool,
            pages.layer(index),
            pages.page_bytes,
            queries.tables[pages.band(index)],
            queries.starts,
            queries.counts,
            queries.first_row,
            config.heads,
            config.kv_heads,
            config.head_dim,
            pages.page_tokens,
            config.scale,
            attended,
            weights.kv,
            config.attention_cap,
            config.window(index),
            layer.sinks,
            config.latent is not None,
        )
        adds = partial(add_adapters, queries.adapted, index)
        self._add(x, layer.attended_norm, self._result(attended, layer.o, layer.o_bias, partial(adds, "o")))
        read = self.normed(x, layer.ffn_norm, layer.ffn_norm_bias)
        self._add(x, layer.fed_norm, self._feed_forward(layer, index, queries, read))

    def normed(self, x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
        """The rows that the next product reads: x itself where the model has no norm."""
        if weight is None:
            return x
        config, out = self._weights.config, self._scratch.take("normed", len(x), self._weights.config.hidden)
        if bias is not None:
            kernels.layernorm(x, weight, bias, config.eps, out)
        else:
            kernels.rmsnorm(x, weight, config.eps, out)
        return out

    def _feed_forward(self, layer: LayerWeights, index: int, queries: Queries, read: Floats) -> _Result:
        """The last product of the feed-forward block for these rows, or all of a mixture of experts."""
        config, experts = self._weights.config, self._experts[index]
        if experts is not None:
            mixture, native = experts
            adapted = partial(kernels.experts.run, read, native)
            if self._product is not kernels.product:
                adapted = partial(mix_one_by_one, read, mixture, product=self._product)
            return partial(adapted, adapted=queries.adapted, layer=index)
        assert layer.gate_up is not None and layer.down is not None
        gated, adds = self._scratch.take("gated", len(read), config.ffn), partial(add_adapters, queries.adapted, index)
        if queries.adapted is None:
            between = kernels.gated if config.row.tensors.gated else kernels.activated
            between(read, layer.gate_up, gated, layer.gate_up_bias, activation=config.activation)
        else:
            both = self._scratch.take("gate_up", len(read), config.gate_up_width)
            self._product(read, layer.gate_up, both, bias=layer.gate_up_bias)
            adds("gate_up", read, both)
            kernels.between(both, gated, activation=config.activation)
        return self._result(gated, layer.down, layer.down_bias, partial(adds, "down"))

    def _result(
        self, inputs: Floats, packed: Bytes, bias: Floats | None, adds: Callable[[Floats, Floats], None]
    ) -> _Result:
        """A product, and what adapters add to it."""

        def compute(out: Floats, *, residual: Floats | None = None) -> None:
            self._product(inputs, packed, out, bias=bias, residual=residual)
            adds(inputs, out)

        return compute

    def _add(self, x: Floats, norm: Floats | None, compute: _Result) -> None:
        """Adds a result to the residual x, normalised and scaled before where the model does so."""
        config = self._weights.config
        if norm is None and config.residual_scale == 1.0:
            compute(x, residual=x)
            return
        out = self._scratch.take("normed", len(x), config.hidden)
        compute(out)
        kernels.add(x, out, norm=norm, eps=config.eps, factor=config.residual_scale)


HeadNorms = tuple[Floats | None, Floats | None]  # those of each head's queries and of its keys


def normed_widths(config: ModelConfig, layer: LayerWeights, qkv: Floats) -> HeadNorms:
    """Normalises queries and keys over all heads together where the model does so; else returns the norms of heads."""
    q_norm, k_norm = layer.q_norm, layer.k_norm
    if q_norm is None or k_norm is None or not config.qk_norm_width:
        return q_norm, k_norm
    kernels.rmsnorm_within(qkv, q_norm[: config.q_width], 0, config.eps)
    kernels.rmsnorm_within(qkv, k_norm[: config.kv_heads * config.head_dim], config.q_width, config.eps)
    return None, None


def write_rotated(
    weights: Weights,
    layer: LayerWeights,
    norms: HeadNorms,
    qkv: Floats,
    slots: Ints,
    page_of: NDArray[np.int64],
    offset_in_page: Ints,
    page_tokens: int,
    pool: Bytes,
    q: Floats,
) -> None:
    """Writes keys and values into their pages, and the rotated queries into q."""
    config, (q_norm, k_norm) = weights.config, norms
    kernels.rotate_write(
        weights.path,
        qkv,
        config.heads,
        config.kv_heads,
        config.head_dim,
        layer.cos,
        layer.sin,
        slots,
        page_of,
        offset_in_page,
        page_tokens,
        pool,
        q,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=config.eps,
        kv=weights.kv,
    )
