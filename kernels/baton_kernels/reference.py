"""References of all CPU kernels in plain torch and numpy. Only tests import this file.

References compute in float64 from the same inputs (rounded to bf16 where the path says so); kernels differ from them by
their fp32 chains. Where bits must be equal (packing, pages, checksums, kept tokens) the reference is exact."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baton_kernels.products import Integers

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


_F32 = np.float32
_GELU = partial(torch.nn.functional.gelu, approximate="tanh")


def integers(x: Array, matrix: Integers) -> Array:
    """The product of an integer form, exactly: docs/integers.md in numpy, operation by operation."""
    form, (n, k) = matrix.form, matrix.values.shape
    if matrix.order is not None:
        x = x[:, matrix.order]
    weights = _exact_weights(matrix)
    whole, length = form.scheme in ("int8", "int4"), k // form.segments
    sums = []
    for first in range(0, k, length):
        total = np.zeros((len(x), n), np.float32)
        block = length if whole else form.group
        for at in range(first, first + length, block):
            q, scale = quantized(x[:, at : at + block])
            dots = (q.astype(np.int64) @ weights[:, at : at + block].astype(np.int64).T).astype(np.int32)
            if whole:
                total = dots.astype(np.float32) * scale
                continue
            g = at // block
            total = _fma(dots.astype(np.float32) * scale, numbers(form.scales, matrix.scales)[:, g], total)
            if form.offset == "minimum":
                assert matrix.offsets is not None
                row = q.sum(1, keepdims=True).astype(np.float32) * scale
                total = _fma(row, numbers(form.scales, matrix.offsets)[:, g], total)
        sums.append(total)
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0] * matrix.scales if whole else sums[0]


def dequantized(matrix: Integers) -> Array:
    """The numbers for which a matrix stands, [n, k] in the order of a row's elements."""
    form, weights = matrix.form, _exact_weights(matrix).astype(np.float32)
    if form.scheme in ("int8", "int4"):
        result = weights * matrix.scales[:, None]
    else:
        scales = np.repeat(numbers(form.scales, matrix.scales), form.group, axis=1)
        result = weights * scales
        if form.offset == "minimum":
            assert matrix.offsets is not None
            result = _fma(weights, scales, np.repeat(numbers(form.scales, matrix.offsets), form.group, axis=1))
    if matrix.order is None:
        return result
    back = np.empty_like(result)
    back[:, matrix.order] = result
    return back


def quantized(x: Array) -> tuple[Array, Array]:
    """One block of each row as int8, and its scale [rows, 1]."""
    most = np.abs(x).max(1, keepdims=True).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale, inverse = most / _F32(127), _F32(127) / most
        q = np.clip(np.rint(x * inverse), -127, 127)
    nothing, wrong = most < _F32(2.0**-100), ~np.isfinite(x).all(1, keepdims=True)
    scale = np.where(wrong, _F32(np.nan), np.where(nothing, _F32(0), scale)).astype(np.float32)
    return np.where(nothing | wrong, 0, q).astype(np.int8), scale


def numbers(kind: str, values: Array) -> Array:
    """Scales or minima as fp32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else values.astype(np.float32)


def _exact_weights(matrix: Integers) -> Array:
    """The integers that are multiplied."""
    form, values = matrix.form, matrix.values.astype(np.int32)
    if form.table:
        values = np.array(form.table, np.int32)[values]
    values = values - form.middle
    if form.scheme == "int4" or form.offset == "zero":
        assert matrix.offsets is not None
        values = values - np.repeat(matrix.offsets.astype(np.int32), form.group, axis=1)
    if form.scheme == "int4":
        assert matrix.factors is not None
        values = values * np.repeat(matrix.factors.astype(np.int32), form.group, axis=1)
    return values


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in fp32 with one rounding: the product of two fp32 is exact in fp64, and the sum is rounded to odd
    there before it becomes fp32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total, wide = product + c, np.broadcast_to(c.astype(np.float64), np.broadcast_shapes(a.shape, b.shape, c.shape))
    shifted = total - product
    rest = (product - (total - shifted)) + (wide - shifted)
    odd = total.view(np.int64) & 1
    away = np.where((rest > 0) == (total > 0), 1, -1)
    total = np.where((rest != 0) & (odd == 0), (total.view(np.int64) + away).view(np.float64), total)
    result: Array = total.astype(np.float32)
    return result


def activated(activation: str, x: Array) -> Array:
    t = torch.from_numpy(np.asarray(x, np.float64))
    result: Array = (torch.nn.functional.silu(t) if activation == "silu" else _GELU(t)).numpy()
    return result


def gated(path: str, x: Array, weight: Array, bias: Array | None = None, activation: str = "silu") -> Array:
    return between(activation, *np.split(product(path, x, weight, bias), 2, axis=1))


def between(activation: str, gate: Array, up: Array) -> Array:
    """The inputs of the second product of an MLP that has a gate."""
    if activation != "clamped_swiglu":
        result: Array = activated(activation, gate) * up
        return result
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    share: Array = torch.from_numpy(np.asarray(1.702 * gate, np.float64)).sigmoid().numpy()
    return (up + 1) * gate * share


def rmsnorm(x: Array, weight: Array, eps: float) -> Array:
    t = torch.from_numpy(x).double()
    result: Array = (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps) * torch.from_numpy(weight).double()).numpy()
    return result


def layernorm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    t, w, b = (torch.from_numpy(each).double() for each in (x, weight, bias))
    result: Array = torch.nn.functional.layer_norm(t, w.shape, w, b, eps).numpy()
    return result


def capped(x: Array, limit: float) -> Array:
    result: Array = np.tanh(x.astype(np.float64) / limit) * limit
    return result


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    """x [rows, heads, dim], cos and sin [rows, dim / 2], half-split convention."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def attention(
    path: str,
    q: Array,
    k: Array,
    v: Array,
    start: int,
    scale: float,
    cap: float = 0.0,
    window: int = 0,
    sinks: Array | None = None,
) -> Array:
    """One sequence: q [rows, heads, dim], k and v [slots, kv_heads, dim] as stored -> [rows, heads * dim]. A sink is
    one more score of its head, with a value of zeros."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    tq = torch.from_numpy(stored(path, q)).double().transpose(0, 1)
    tk, tv = (torch.from_numpy(a).double().repeat_interleave(group, dim=1).transpose(0, 1) for a in (k, v))
    slots, own = torch.arange(k.shape[0])[None], start + torch.arange(rows)[:, None]
    seen = (slots <= own) & (slots > own - (window or len(k) + rows))
    scores = tq @ tk.transpose(1, 2) * scale
    scores = (scores / cap).tanh() * cap if cap else scores
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        beside = torch.from_numpy(sinks).double()[:, None, None].expand(heads, rows, 1)
        weights = torch.cat([scores, beside], -1).softmax(-1)[..., :-1]
    result: Array = (weights @ tv).transpose(0, 1).reshape(rows, heads * dim).numpy()
    return result


_MOST_CODE = {"int8": 127, "fp8": 448, "int4": 7}  # the largest number of a code


def coded(kv: str, x: Array) -> tuple[Array, Array]:
    """The codes of heads [..., dim] as bytes, and their scales [..., 1] as fp32: `cpu/page_codes.h` in numpy."""
    most = np.abs(x).max(-1, keepdims=True).astype(np.float32)
    wrong, nothing = ~np.isfinite(x).all(-1, keepdims=True), most < _F32(2.0**-100)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = bf16(most / _F32(_MOST_CODE[kv]))
        y = np.where(wrong | nothing, _F32(0), x / scale).astype(np.float32)
    scale = np.where(wrong, _F32(np.nan), np.where(nothing, _F32(0), scale))
    if kv != "fp8":
        most_code = _MOST_CODE[kv]
        return np.clip(np.rint(y), -most_code, most_code).astype(np.int8).view(np.uint8), scale
    codes = torch.from_numpy(np.clip(y, -448, 448)).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.numpy(), scale


def decoded(kv: str, codes: Array) -> Array:
    """The numbers of codes, one in a byte, without their scales."""
    if kv != "fp8":
        return codes.view(np.int8).astype(np.float32)
    result: Array = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    return result


def read_codes(kv: str, layer: Array, kv_heads: int, page_tokens: int, dim: int) -> tuple[Array, Array]:
    """K and V as `read_page` gives them, of a page that holds codes: numbers times scales."""
    parts, size = layer.reshape(2, kv_heads, -1), page_tokens * (dim // 2 if kv == "int4" else dim)
    codes = np.ascontiguousarray(parts[..., :size])
    scales = (np.ascontiguousarray(parts[..., size:]).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kv == "int4":
        codes = np.stack([codes & 15, codes >> 4]) - np.uint8(8)  # [low and high bits, K and V, kv_heads, bytes]
        k = codes[:, 0].reshape(2, kv_heads, dim // 2, page_tokens).transpose(3, 1, 2, 0)
        v = codes[:, 1].reshape(2, kv_heads, page_tokens // 2, dim // 2, 2).transpose(2, 4, 1, 0, 3)
    else:
        k = codes[0].reshape(kv_heads, dim // 2, page_tokens, 2).transpose(2, 0, 1, 3)
        v = codes[1].reshape(kv_heads, page_tokens // 2, dim, 2).transpose(1, 3, 0, 2)
    shape = page_tokens, kv_heads, dim
    numbers_of = [decoded(kv, np.ascontiguousarray(each).reshape(shape)) for each in (k, v)]
    return numbers_of[0] * scales[0].T[..., None], numbers_of[1] * scales[1].T[..., None]


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
