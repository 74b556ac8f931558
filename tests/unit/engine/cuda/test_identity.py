"""The GPU's class and fingerprint, in the interpreter."""

import pytest
import torch

from baton_kernels import KernelError
from engine.cuda import identity, products

CPU = torch.device("cpu")


def test_the_class_names_the_path_and_the_vendors_is_another() -> None:
    exact, fast = identity.identify("ab" * 32, "cuda-sm90", CPU), identity.identify("ab" * 32, "fast", CPU)
    assert "path=cuda-sm90" in exact.numerics and "path=fast" in fast.numerics
    assert exact.fingerprint != fast.fingerprint


def test_a_product_whose_bits_follow_the_batch_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongProducts(products.Exact):
        def product(self, x, weight, out, bias=None, residual=None):  # type: ignore[no-untyped-def]
            super().product(x, weight, out, bias, residual)
            out *= 1 + len(x) * 2**-20

    monkeypatch.setattr(identity, "products_for", lambda path: WrongProducts())
    with pytest.raises(KernelError, match="other bits"):
        identity.self_test("cuda-sm90", CPU)
