"""A worker's identity: its numerics class, which says what bits it computes, and the fingerprint that proves it.

Two workers may work on one request only when both strings are equal: the router pairs workers by them, and the hashes
of pages contain the class. The self-test runs once at start; it also compares the chosen kernel bodies with the plain
ones."""

from dataclasses import dataclass

import baton_kernels
from engine.model.weights import Weights

_KV_DTYPES = {"fp32": "fp32", "pairs": "bf16", "amx": "bf16"}


@dataclass(frozen=True, slots=True)
class Identity:
    numerics: str
    fingerprint: str
    model_hash: str
    path: str


def identify(weights: Weights) -> Identity:
    """Raises baton_kernels.KernelError when a chosen body computes other bits than the plain one."""
    parts = (
        f"model={weights.model_hash[:32]}",
        f"weights={weights.dtype}",
        f"kv={_KV_DTYPES[weights.path]}",
        "tp=1",
        f"path={weights.path}",
        f"kernels={baton_kernels.KERNEL_VERSION}",
    )
    return Identity(" ".join(parts), baton_kernels.self_test(weights.path), weights.model_hash, weights.path)
