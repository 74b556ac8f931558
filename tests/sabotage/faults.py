"""What a sabotaged decode worker does wrong, as plain values in a file that only `tests/sabotage/broken_worker.py`
reads.

The damaged bit is chosen where it must show: in a key to which the first decode row gives at least 1/64 of its
attention in some head of the first layer, and in an element of that key that matters to the score."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.model.weights import Weights

LEAST_WEIGHT = 1 / 64
_EXPONENT = {"fp32": (23, 4), "pairs": (7, 2)}  # lowest exponent bit, bytes of an element
_LOW_BITS = 3  # damaged bits are among the exponent's lowest: the key stays a number

Floats = NDArray[np.float32]
Indexes = NDArray[np.int64]
Place = TypeVar("Place", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Damage:
    """One bit of one landed page."""

    prompt: tuple[int, ...]
    page: int  # index of the page in the prompt
    offset: int  # byte offset in the page
    mask: int
    weight: float  # share of the attention that the slot gets


@dataclass(frozen=True, slots=True)
class Fault:
    damages: tuple[Damage, ...] = ()
    checks: bool = True  # spans are checked before they can be read
    split_product: bool = False  # the product's K split depends on the batch
    wrong_scale: bool = False  # a scale of each quantized matrix is twice as large

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> "Fault":
        raw = json.loads(path.read_text())
        damages = tuple(Damage(**{**one, "prompt": tuple(one["prompt"])}) for one in raw.pop("damages"))
        return cls(damages=damages, **raw)


def choose_damage(
    weights: Weights, prompt: Sequence[int], first: int, *, page_tokens: int, seed: int, on_gpu: bool = False
) -> Damage:
    """`first` is the token that follows the prompt: its row is the first that reads the landed pages. `weights` of path
    `pairs` serve for a GPU too: its queries and keys differ in the last bits only, so the same slots are heavy."""
    random, config = Random(seed), weights.config
    q, keys = _first_layer(weights, [*prompt, first], page_tokens)
    group = config.heads // config.kv_heads
    scores = np.einsum("hd,thd->ht", q, np.repeat(keys, group, axis=1)) * config.head_dim**-0.5  # [heads, slots]
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    heavy = np.argwhere(shares[:, : len(prompt)] >= LEAST_WEIGHT)  # the last slot has not landed
    if not len(heavy):
        raise ValueError(f"seed {seed}: no landed slot carries {LEAST_WEIGHT} of the weight; choose a shorter prompt")
    head, slot = (int(value) for value in heavy[random.randrange(len(heavy))])
    effect = np.abs(q[head] * keys[slot, head // group])
    dim = int(random.choice(np.argsort(effect)[-config.head_dim // 4 :].tolist()))
    bit, size = _EXPONENT[weights.path]
    bit += random.randrange(_LOW_BITS)
    if weights.kv == kernels.OWN:
        tile = "gpu" if on_gpu else weights.path
        begin = _place(tile, head // group, dim, slot % page_tokens, page_tokens, config.head_dim) * size
    else:  # the key's scale
        begin = _scale(head // group, slot % page_tokens, page_tokens, config.head_dim)
    return Damage(
        prompt=tuple(prompt),
        page=slot // page_tokens,
        offset=begin + bit // 8,
        mask=1 << bit % 8,
        weight=float(shares[head, slot]),
    )


def _first_layer(weights: Weights, tokens: Sequence[int], page_tokens: int) -> tuple[Floats, Floats]:
    """Queries of the last row [heads, dim] and keys of all rows [slots, kv_heads, dim], as the engine computes them."""
    config, layer, count = weights.config, weights.layers[0], len(tokens)
    x = np.empty((count, config.hidden), np.float32)
    kernels.embed(weights.embed, np.array(tokens, np.int32), x)
    normed, qkv = np.empty_like(x), np.empty((count, config.qkv_width), np.float32)
    assert layer.input_norm is not None, "the faults are those of a family with Llama's norms"
    kernels.rmsnorm(x, layer.input_norm, config.eps, normed)
    kernels.product(normed, layer.qkv, qkv, bias=layer.qkv_bias)
    size = kernels.layer_bytes(weights.path, page_tokens, config.kv_heads, config.head_dim, weights.kv)
    pool = np.zeros(-(-count // page_tokens) * size, np.uint8)
    slots = np.arange(count, dtype=np.int32)
    q = np.empty((count, config.heads, config.head_dim), np.float32)
    kernels.rotate_write(
        weights.path,
        qkv,
        config.heads,
        config.kv_heads,
        config.head_dim,
        weights.cos,
        weights.sin,
        slots,
        (slots // page_tokens).astype(np.int64) * size,
        slots % page_tokens,
        page_tokens,
        pool,
        q,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        eps=config.eps,
        kv=weights.kv,
    )
    heads, dims = np.arange(config.kv_heads), np.arange(config.head_dim)
    slot, head, dim = np.meshgrid(slots.astype(np.int64), heads, dims, indexing="ij")
    if weights.kv != kernels.OWN:
        return q[-1], _coded_keys(weights, pool, slot, head, dim, page_tokens, size)
    places = _place(weights.path, head, dim, slot % page_tokens, page_tokens, config.head_dim)
    if weights.path == "pairs":
        elements = pool.view(np.uint16)[slot // page_tokens * (size // 2) + places]
        return q[-1], (elements.astype(np.uint32) << 16).view(np.float32)
    return q[-1], pool.view(np.float32)[slot // page_tokens * (size // 4) + places]


def _coded_keys(
    weights: Weights, pool: NDArray[np.uint8], slot: Indexes, head: Indexes, dim: Indexes, page_tokens: int, size: int
) -> Floats:
    """Keys in int8: codes times scales."""
    head_dim, inside, page = weights.config.head_dim, slot % page_tokens, slot // page_tokens * size
    place = _place("pairs", 0 * head, dim, inside, page_tokens, head_dim) + head * page_tokens * (head_dim + 2)
    codes = pool.view(np.int8)[page + place].astype(np.float32)
    scales = pool.view(np.uint16)[(page + _scale(head, inside, page_tokens, head_dim)) // 2]
    keys: Floats = codes * (scales.astype(np.uint32) << 16).view(np.float32)
    return keys


def _scale(head: Place, slot: Place, page_tokens: int, head_dim: int) -> Place:
    """Byte offset of a key's scale in the first layer of a page that holds codes."""
    return head * (page_tokens * (head_dim + 2)) + page_tokens * head_dim + slot * 2


def _place(layout: str, head: Place, dim: Place, slot: Place, page_tokens: int, head_dim: int) -> Place:
    """Index of this key element in a page's first layer; `slot` counts inside the page."""
    tile = head * (page_tokens * head_dim)
    if layout == "gpu":
        return tile + slot * head_dim + dim
    if layout == "pairs":
        return tile + (dim // 2 * page_tokens + slot) * 2 + dim % 2
    return tile + dim * page_tokens + slot
