"""Numerics classes: equal for equal bits, different for whatever changes them."""

from pathlib import Path

from baton_kernels import library
from engine.builtin import tiny
from engine.model.weights import open_weights
from engine.selftest.identity import identify


def test_the_class_names_model_dtypes_path_and_kernels(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2", dtype="bf16"), tmp_path / "cache"
    pairs = identify(open_weights(folder, cache, product_path="pairs"), 32)
    assert pairs == identify(open_weights(folder, cache, product_path="pairs"), 16)
    kernels = f"kernels=3-{library.sources()[:12]}"
    for part in (pairs.model_hash[:32], "weights=bf16", "kv=bf16", "tp=1", "path=pairs", kernels):
        assert part in pairs.numerics
    assert pairs.numerics in pairs.pairing and pairs.fingerprint in pairs.pairing


def test_another_path_or_model_is_another_class(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = tiny(tmp_path / "model", "llama2", dtype="bf16")
    other = tiny(tmp_path / "other", "llama2", dtype="bf16", seed=1)
    classes = [
        identify(open_weights(folder, cache), 32),
        identify(open_weights(folder, cache, product_path="fp32"), 32),
        identify(open_weights(other, cache), 32),
    ]
    assert len({one.numerics for one in classes}) == len({one.fingerprint for one in classes}) == 3
