"""What this machine can do at most with the pool's threads: the measure of benchmarks, never used while serving.

Reading is measured over memory that is handed in (make it far larger than any cache), products from registers only."""

import numpy as np

from baton_kernels.arrays import U8, Array, buffer
from baton_kernels.library import KernelError, load

_KINDS = {"chains": 1, "pairs": 2, "tiles": 3}  # fp32 multiply-adds, pair products, tile products


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
    """The raw peak of a product path: of the fastest instructions that can carry it out here."""
    if path == "amx":
        return operations_per_second("tiles", steps // 4)
    chains = operations_per_second("chains", steps)
    return chains if path == "fp32" else max(chains, operations_per_second("pairs", steps))


def aligned(nbytes: int) -> Array:
    """Touched memory that begins at a cache line."""
    raw = np.ones(nbytes + 64, np.uint8)
    first = -raw.__array_interface__["data"][0] % 64
    return raw[first : first + nbytes]
