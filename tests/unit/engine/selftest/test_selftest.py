"""A kernel that is wrong for the opened model changes its fingerprint or keeps the worker from starting.

Each mutant is right on the shapes of the kernels' own fixed self-test and a little wrong on some shape of the model."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baton_kernels
from baton_kernels import library, machine
from engine.builtin import tiny
from engine.families.rope import Rope
from engine.model.config import ModelConfig
from engine.model.weights import Weights, open_weights
from engine.selftest import inputs as selftest_inputs
from engine.selftest import run as selftest
from engine.selftest.run import check_draft_kernels, self_test
from tests.unit.engine.kernel_mutants import MUTANTS, Wrong, embedding, groups_of_seven, pages_of_sixteen

PAGE_TOKENS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Groups of seven heads, heads of 64, more than 448 inputs, more than 512 slots."""
    shape: dict[str, Any] = {"hidden": 512, "heads": 14, "kv_heads": 2, "head_dim": 64, "ffn": 640, "context": 2048}
    return tiny(tmp_path_factory.mktemp("selftest") / "model", "qwen2", dtype="bf16", vocab=1000, **shape)


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return open_weights(folder, folder.parent / "cache")


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    baton_kernels.set_threads(2)
    yield
    baton_kernels.choose(None)
    baton_kernels.set_threads(1)


@pytest.fixture(scope="module")
def honest(weights: Weights) -> str:
    return self_test(weights, PAGE_TOKENS)


@pytest.fixture(scope="module")
def fixed(weights: Weights) -> str:
    """The fingerprint of the kernels' own self-test, on its fixed shapes."""
    return baton_kernels.self_test(weights.path)


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Wrong], None]:
    def act(name: str, wrong: Wrong) -> None:
        right = getattr(library.load(), name)

        def mutant(*given: Any) -> Any:
            refused = right(*given)
            wrong(*given)
            return refused

        monkeypatch.setattr(library.load(), name, mutant)

    return act


def shows(weights: Weights, page_tokens: int, honest: str) -> bool:
    """Whether the self-test refuses the worker, or gives it a fingerprint of its own."""
    try:
        return self_test(weights, page_tokens) != honest
    except baton_kernels.KernelError:
        return True


@pytest.mark.parametrize("name", MUTANTS)
def test_a_kernel_that_is_wrong_on_the_models_shapes_shows(
    name: str, weights: Weights, honest: str, fixed: str, mutate: Callable[[str, Wrong], None]
) -> None:
    mutate(*MUTANTS[name])
    assert baton_kernels.self_test(weights.path) == fixed, "on fixed shapes alone the mutant passes"
    assert shows(weights, PAGE_TOKENS, honest)


def test_a_body_that_is_wrong_on_the_models_shapes_never_serves(
    weights: Weights, mutate: Callable[[str, Wrong], None]
) -> None:
    def wrong(*given: Any) -> None:
        if machine.forced() != "plain":
            embedding(*given)

    mutate("embed", wrong)
    with pytest.raises(baton_kernels.KernelError, match=r"products of .* have other bits than plain's"):
        self_test(weights, PAGE_TOKENS)
    assert machine.forced() is None


@pytest.mark.parametrize("page_tokens", [16, 32, 64])
def test_a_wrong_page_write_shows_with_every_page_size(
    page_tokens: int, weights: Weights, honest: str, mutate: Callable[[str, Wrong], None]
) -> None:
    assert self_test(weights, page_tokens) == honest

    def wrong(*given: Any) -> None:
        if given[13] == page_tokens:
            pages_of_sixteen(*given[:13], 16, *given[14:])

    mutate("rotate_write", wrong)
    assert shows(weights, page_tokens, honest)


def test_a_function_replaced_in_python_shows(weights: Weights, honest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = baton_kernels.gated

    def wrong(x: Any, packed: Any, out: Any, *more: Any, **how: Any) -> None:
        right(x, packed, out, *more, **how)
        out *= np.float32(1.01)

    monkeypatch.setattr(baton_kernels, "gated", wrong)
    assert shows(weights, PAGE_TOKENS, honest)


def test_equal_models_have_equal_fingerprints_whatever_computes_them(
    folder: Path, weights: Weights, honest: str, tmp_path: Path
) -> None:
    for threads in (1, 3):
        baton_kernels.set_threads(threads)
        assert self_test(weights, PAGE_TOKENS) == honest
    for body in baton_kernels.bodies()["product.pairs"]:
        baton_kernels.choose(body)
        assert self_test(weights, PAGE_TOKENS) == honest and machine.forced() == body
    baton_kernels.choose(None)
    shorter = open_weights(folder, tmp_path / "cache", context_tokens=100)
    assert self_test(shorter, PAGE_TOKENS) == honest, "a setting is no part of it"


@pytest.mark.parametrize("family", ["llama2", "llama3", "qwen3"])
@pytest.mark.parametrize("path", ["fp32", "pairs", "amx"])
def test_every_family_and_path_passes(family: str, path: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"context": 24, "ffn": 100, "layers": 1} if family == "llama2" else {}
    weights = open_weights(tiny(tmp_path / "model", family, dtype="bf16", **shape), tmp_path, product_path=path)
    assert self_test(weights, 32) == self_test(weights, 64)
    check_draft_kernels(weights, 32)


def test_a_wrong_draft_kernel_keeps_its_worker_from_starting(
    weights: Weights, mutate: Callable[[str, Wrong], None]
) -> None:
    def wrong(step: Any, model: Any, sampling: Any, *rest: Any) -> None:
        if machine.forced() != "plain":
            ctypes.c_int32.from_address(rest[5]).value ^= 1

    mutate("propose", wrong)
    with pytest.raises(baton_kernels.KernelError, match="proposals"):
        check_draft_kernels(weights, PAGE_TOKENS)


def large(hidden: int, ffn: int) -> ModelConfig:
    return ModelConfig("llama", 128256, hidden, 32, 32, 8, 128, ffn, 8192, 1e-5, Rope(1e4), *[False] * 4)


def test_large_models_compute_fewer_rows_but_always_some_of_each_kind() -> None:
    small, big = selftest_inputs.row_counts(large(896, 4864)), selftest_inputs.row_counts(large(8192, 28672))
    assert {1, 2, 4, 5, 12, 13} <= set(big) <= set(small) and sum(big) < sum(small) and list(small) == sorted(small)


def test_without_the_parts_that_attend_a_wrong_attention_is_not_seen(
    weights: Weights, mutate: Callable[[str, Wrong], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("attention", "large_steps", "lengths", "steps"):
        monkeypatch.setattr(selftest, part, lambda weights, page_tokens: iter(()))
    before = self_test(weights, PAGE_TOKENS)
    mutate("attention", groups_of_seven)
    assert self_test(weights, PAGE_TOKENS) == before
