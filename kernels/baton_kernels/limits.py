"""The most that this machine can do with the pool's threads. Benchmarks measure against it; serving never calls it.

Reading is measured over memory that the caller passes (far larger than any cache), products from registers only, but
for loaded tiles."""

import numpy as np

from baton_kernels.arrays import PATHS, U8, Array, buffer
from baton_kernels.library import KernelError, load

# Multiply-adds of fp32; of bf16 pairs; on tiles; of four bytes; of two words with an addition; of bytes on tiles; on
# tiles that are loaded from the first-level cache before each of them, with four in use and with eight.
_KINDS = {
    "chains": 1, "pairs": 2, "tiles": 3, "quads": 4, "words": 5, "byte_tiles": 6, "loaded_tiles": 7, "eight_tiles": 8,
}  # fmt: skip


def read_bytes_per_second(memory: Array) -> float:
    """One pass over a uint8 array that begins at a cache line."""
    if memory.dtype != U8 or buffer("memory", memory, 0) % 64:
        raise KernelError("memory: must be uint8 and begin at a multiple of 64 bytes")
    rate: float = load().limit(0, buffer("memory", memory, 0), memory.size)
    return rate


def operations_per_second(kind: str, steps: int) -> float:
    """A multiply-add is two operations. 0.0 where the processor lacks the instruction."""
    rate: float = load().limit(_KINDS[kind], None, steps)
    return rate


def peak(path: str, steps: int) -> float:
    """Peak operations per second of a product path, or of integer products, with the fastest instructions of this
    machine that compute it."""
    if path == "amx":
        return operations_per_second("tiles", steps // 4)
    if path not in PATHS:
        on_tiles = operations_per_second("byte_tiles", steps // 4)
        return on_tiles or operations_per_second("quads", steps) or operations_per_second("words", steps)
    chains = operations_per_second("chains", steps)
    return chains if path == "fp32" else max(chains, operations_per_second("pairs", steps))


def aligned(nbytes: int) -> Array:
    """Memory that begins at a cache line; every page of it has been written."""
    raw = np.ones(nbytes + 64, np.uint8)
    first = -raw.__array_interface__["data"][0] % 64
    return raw[first : first + nbytes]
