"""The sampler's noise: a pure function of (seed, choice, position, token id), the same numbers as the CPU kernels
draw.

Integers are mixed exactly, and the two logarithms use the polynomial of the CPU kernels in the same order of fused
operations, so the noise has the same bits as on the CPU."""

from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray


@triton.jit
def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def noise_key(seed, choice, position):
    """seed uint64, choice and position int32, as scalars."""
    where = (choice.to(tl.uint32).to(tl.uint64) << 32) | position.to(tl.uint32).to(tl.uint64)
    return mix(mix(seed + 0x9E3779B97F4A7C15) + mix(where ^ 0xD1B54A32D192ED03))


@triton.jit
def log(x):
    """Natural logarithm of normal positive numbers."""
    bits = x.to(tl.uint32, bitcast=True)
    e = ((bits >> 23).to(tl.int32) - 126).to(tl.float32)
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)  # [0.5, 1)
    small = m < 0.707106781
    e = tl.where(small, e - 1.0, e)
    m = tl.where(small, m + m, m) - 1.0
    p = tl.full(m.shape, 7.0376836292e-2, tl.float32)
    p = tl.fma(p, m, -1.1514610310e-1)
    p = tl.fma(p, m, 1.1676998740e-1)
    p = tl.fma(p, m, -1.2420140846e-1)
    p = tl.fma(p, m, 1.4249322787e-1)
    p = tl.fma(p, m, -1.6668057665e-1)
    p = tl.fma(p, m, 2.0000714765e-1)
    p = tl.fma(p, m, -2.4999993993e-1)
    p = tl.fma(p, m, 3.3333331174e-1)
    z = m * m
    y = p * m * z
    y = tl.fma(e, -2.12194440e-4, y)
    y = tl.fma(z, -0.5, y)
    return tl.fma(e, 0.693359375, m + y)


@triton.jit
def gumbel(key, ids):
    """-log(-log(u)), u in (0, 1) with 48 random bits; -log(1 - v) by its series for small v."""
    z = mix(key + (ids.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)
    high = (z >> 40).to(tl.int32).to(tl.float32)
    low = ((z >> 16) & 0xFFFFFF).to(tl.int32).to(tl.float32)
    tail = tl.fma(low, 3.552713678800501e-15, 1.7763568394002505e-15)  # 2^-48, 2^-49
    v = tl.minimum(tl.fma(high, 5.960464477539063e-08, tail), 0.999999940395355)
    series = tl.fma(v, 0.25, 0.3333333432674408)
    series = tl.fma(v * v, tl.fma(v, series, 0.5), v)
    return -log(tl.where(v < 0.015625, series, -log(1.0 - v)))


def reference(seed: int, choice: int, position: int, ids: NDArray[Any]) -> NDArray[Any]:
    """The noise in float64, computed from the same 48 random bits."""

    def stir(z: NDArray[Any]) -> NDArray[Any]:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[Any] = z ^ (z >> np.uint64(31))
        return mixed

    with np.errstate(over="ignore"):
        where = np.array([choice << 32 | position], np.uint64)
        key = stir(
            stir(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
            + stir(where ^ np.uint64(0xD1B54A32D192ED03))
        )
        z = stir(key + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    v = (z >> np.uint64(40)) * 2.0**-24 + (z >> np.uint64(16) & np.uint64(0xFFFFFF)) * 2.0**-48 + 2.0**-49
    result: NDArray[Any] = -np.log(-np.log1p(-np.minimum(v, 1 - 2.0**-24)))
    return result
