"""References of all CPU kernels in plain torch and numpy. Only tests import this file.

References compute in float64 from the same inputs (rounded to bf16 where the path says so); kernels differ from them by
their fp32 chains. Where bits must be equal (packing, pages, checksums, kept tokens) the reference is exact."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


def bf16(x: Array) -> Array:
    """Rounded to the nearest bf16, as float32."""
    result: Array = torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()
    return result


def bf16_bits(x: Array) -> Array:
    return (bf16(x).view(np.uint32) >> 16).astype(np.uint16)


def stored(path: str, x: Array) -> Array:
    """x rounded as the operands of the path hold it."""
    return x if path == "fp32" else bf16(x)


def product(path: str, x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    left, right = (torch.from_numpy(stored(path, a)).double() for a in (x, weight))
    y = left @ right.T
    for more in (bias, residual):
        y = y if more is None else y + torch.from_numpy(more).double()
    result: Array = y.numpy()
    return result


def gated(path: str, x: Array, weight: Array) -> Array:
    gate, up = torch.from_numpy(product(path, x, weight)).chunk(2, dim=1)
    result: Array = (torch.nn.functional.silu(gate) * up).numpy()
    return result


def rmsnorm(x: Array, weight: Array, eps: float) -> Array:
    t = torch.from_numpy(x).double()
    result: Array = (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps) * torch.from_numpy(weight).double()).numpy()
    return result


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    """x [rows, heads, dim], cos and sin [rows, dim / 2], half-split convention."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def attention(path: str, q: Array, k: Array, v: Array, start: int, scale: float) -> Array:
    """One sequence: q [rows, heads, dim], k and v [slots, kv_heads, dim] as stored -> [rows, heads * dim]."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    tq = torch.from_numpy(stored(path, q)).double().transpose(0, 1)
    tk, tv = (torch.from_numpy(a).double().repeat_interleave(group, dim=1).transpose(0, 1) for a in (k, v))
    seen = torch.arange(k.shape[0])[None] <= start + torch.arange(rows)[:, None]
    weights = (tq @ tk.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
    result: Array = (weights @ tv).transpose(0, 1).reshape(rows, heads * dim).numpy()
    return result


def read_page(path: str, layer: Array, kv_heads: int, page_tokens: int, dim: int) -> tuple[Array, Array]:
    """K and V [page_tokens, kv_heads, dim] of one layer's bytes of a page."""
    if path == "fp32":
        tiles = layer.view(np.float32).reshape(2, kv_heads, page_tokens * dim)
        k = tiles[0].reshape(kv_heads, dim, page_tokens).transpose(2, 0, 1)
        return k, tiles[1].reshape(kv_heads, page_tokens, dim).transpose(1, 0, 2)
    halves = (layer.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(2, kv_heads, page_tokens * dim)
    k = halves[0].reshape(kv_heads, dim // 2, page_tokens, 2).transpose(2, 0, 1, 3).reshape(page_tokens, kv_heads, dim)
    v = halves[1].reshape(kv_heads, page_tokens // 2, dim, 2).transpose(1, 3, 0, 2).reshape(page_tokens, kv_heads, dim)
    return k, v


def checksum(data: bytes, word: int) -> int:
    words = np.frombuffer(data, np.uint64)
    with np.errstate(over="ignore"):
        x = (np.arange(word, word + words.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        y = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        return int((words * ((y ^ (y >> np.uint64(29))) | np.uint64(1))).sum(dtype=np.uint64))


def kept(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Ids that top-k, then top-p, then min-p keep, ties to the lowest id."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")[: top_k or None]
    mass = np.exp(scaled[order] - scaled[order[0]])
    before = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
    return {int(i) for i, m, b in zip(order, mass, before, strict=True) if b < top_p * mass.sum() and m >= min_p} | {
        int(order[0])
    }


def logprobs(logits: Array) -> Array:
    result: Array = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    return result
