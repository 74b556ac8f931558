"""Inputs at which processors differ most: NaN, infinities, denormals, zeros of both signs, ties, all numbers of
16 bits, spans that begin anywhere. Each case returns what the bodies in use make of them."""

from collections.abc import Callable, Iterator

import numpy as np

import baton_kernels as bk
from baton_kernels import fixed, pages, products, rows
from baton_kernels.arrays import PATHS, Array
from baton_kernels.layer import ACTIVATIONS
from baton_kernels.library import load

EDGES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 88.3, -87.3, 127, 0.5, 1.5, 2.5, 3.4e38, 1.2e-38, 1e-40, -1e-40, 1e-45],
    np.float32,
)  # fmt: skip
DEEP = 192

Case = Callable[[], Iterator[Array]]


def edges(seed: int, *shape: int) -> Array:
    """Random numbers with an edge among each eight of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.12, EDGES[rng.integers(len(EDGES), size=shape)], x)


def logarithms_and_powers() -> Iterator[Array]:
    words = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = np.linspace(-90, 90, 20_001, dtype=np.float32)
    for x in (words, near, np.resize(EDGES, 333)):
        logs, exps = np.empty_like(x), np.empty_like(x)
        load().log_exp(*(each.ctypes.data for each in (x, logs, exps)), len(x))
        yield from (logs, exps)


def all_numbers_of_16_bits() -> Iterator[Array]:
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[~np.isnan(every.view(np.float16))]
    for path in PATHS:
        for weight in (np.resize(finite, (64, 1024)).view(np.float16), every.reshape(64, 1024)):
            packed = np.zeros(products.pack_bytes(path, 64, 1024), np.uint8)
            products.pack(path, weight, packed)
            yield packed
            widened = np.empty((64, 1024), np.float32)
            products.embed(packed, np.arange(64, dtype=np.int32), widened)
            yield widened


def products_of_edges() -> Iterator[Array]:
    for path in PATHS:
        weight = fixed.packed(path, fixed.numbers(1, 96, DEEP))
        for count in (1, 3, 7, 40):
            x, bias, residual = edges(count, count, DEEP), edges(2, 96), edges(3, count, 96)
            clean = fixed.numbers(count, count, DEEP)
            for given in (x, clean):
                out = np.empty((count, 96), np.float32)
                products.product(given, weight, out, bias, residual)
                yield out
            for activation in ACTIVATIONS:
                out = np.empty((count, 48), np.float32)
                products.gated(clean, weight, out, bias, activation=activation)
                yield out


def rows_of_edges() -> Iterator[Array]:
    x, weight, bias = edges(5, 9, 130), edges(6, 130), edges(7, 130)
    for act in (
        lambda y: rows.clip(y, 0.25),
        lambda y: rows.cap(y, 30.0),
        lambda y: rows.add(y, x, norm=weight, factor=0.3),
    ):
        y = edges(8, 9, 130)
        act(y)
        yield y
    for norm in (
        lambda out: rows.rmsnorm(x, weight, 1e-6, out),
        lambda out: rows.layernorm(x, weight, bias, 1e-5, out),
    ):
        out = np.empty_like(x)
        norm(out)
        yield out


def pages_of_edges() -> Iterator[Array]:
    """Own pages hold no NaN here: its sign and payload are each machine's own, and pages are compared as bytes."""
    page, heads, dim, count = 32, 2, 32, 20
    for path in PATHS:
        for kv in bk.KV:
            qkv = edges(9, count, 3 * heads * dim)
            qkv = np.nan_to_num(qkv, nan=2.0) if kv == bk.OWN else qkv
            pool = np.zeros(bk.layer_bytes(path, page, heads, dim, kv), np.uint8)
            slots, q = np.arange(count, dtype=np.int32), np.empty((count, heads, dim), np.float32)
            zeros = np.zeros(count, np.int64)
            bk.rotate_write(path, qkv, heads, heads, dim, None, None, slots, zeros, slots, page, pool, q, kv=kv)
            yield from (pool, q)


def spans_of_pages() -> Iterator[Array]:
    words = fixed.numbers(11, 4096).view(np.uint8)
    for first, size in ((0, 8), (8, 512), (64, 4096), (72, 1000), (40, 12_000), (4, 4096), (0, 128)):
        to, sums = np.zeros(16_384, np.uint8), np.empty(1, np.uint64)
        addresses = [np.array([each.ctypes.data + first], np.int64) for each in (to, words)]
        pages.scatter(*addresses, size, np.array([first], np.int64), sums)
        yield from (to, sums)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        logarithms_and_powers,
        all_numbers_of_16_bits,
        products_of_edges,
        rows_of_edges,
        pages_of_edges,
        spans_of_pages,
    )
}


def same(one: Array, other: Array) -> bool:
    """Equal bytes; of fp32 numbers each NaN counts as the same."""
    if one.dtype == np.float32:
        bits = one.view(np.uint32) == other.view(np.uint32)
        return bool((bits | np.isnan(one) & np.isnan(other)).all())
    return one.tobytes() == other.tobytes()
