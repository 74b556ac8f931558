"""A worker's identity: its numerics class, which says what bits it computes, and the fingerprint that proves it.

Two workers may work on one request only when both strings are equal: the router pairs workers by them, and the hashes
of pages contain the class. The class names the sources that the kernels were compiled from, not the library's bytes:
each machine compiles its own, and compilers differ where bits do not. `engine/selftest/run.py` makes the
fingerprint."""

from dataclasses import dataclass

import baton_kernels
from baton_kernels import library
from engine.model.weights import Weights
from engine.selftest.run import self_test


@dataclass(frozen=True, slots=True)
class Identity:
    numerics: str
    fingerprint: str
    model_hash: str
    path: str

    @property
    def pairing(self) -> str:
        """Equal for two workers exactly if they may exchange pages."""
        return f"{self.numerics} fingerprint {self.fingerprint}"


def identify(weights: Weights, page_tokens: int) -> Identity:
    """Raises baton_kernels.KernelError when the self-test finds a wrong kernel."""
    parts = (
        f"model={weights.model_hash[:32]}",
        f"weights={weights.dtype}",
        f"kv={baton_kernels.tiles(weights.path, weights.kv)[1]}",
        "tp=1",
        f"path={weights.computed_as}",
        f"kernels={baton_kernels.KERNEL_VERSION}-{library.sources()[:12]}",
    )
    return Identity(" ".join(parts), self_test(weights, page_tokens), weights.model_hash, weights.computed_as)
