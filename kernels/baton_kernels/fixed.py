"""Fixed numbers, and packed matrices made of them: what self-tests compute with."""

import numpy as np

from baton_kernels import products
from baton_kernels.arrays import Array


def numbers(seed: int, *shape: int) -> Array:
    """Fixed pseudo-random fp32 numbers around zero, by integer arithmetic only, spread over a few powers of two."""
    z = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(32)
    mantissa = (z >> np.uint64(8) & np.uint64(0xFFFF)).astype(np.float32) / np.float32(65536) - np.float32(0.5)
    power = (z >> np.uint64(30) & np.uint64(3)).astype(np.int32)
    result: Array = np.ldexp(mantissa, power - 1).astype(np.float32).reshape(shape)
    return result


def packed(path: str, weight: Array) -> Array:
    out = np.zeros(products.pack_bytes(path, *weight.shape), np.uint8)
    products.pack(path, weight, out)
    return out
