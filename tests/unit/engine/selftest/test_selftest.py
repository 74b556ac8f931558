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
from baton_kernels.forms import Header
from engine.builtin import tiny
from engine.model.config import ModelConfig, Rope
from engine.model.weights import Weights, open_weights
from engine.selftest import inputs as selftest_inputs
from engine.selftest import run as selftest
from engine.selftest.run import check_draft_kernels, self_test

PAGE_TOKENS = 16
Wrong = Callable[..., None]  # called with a function's arguments after it has run


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


def floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def wide_heads(path: int, q: int, *rest: Any) -> None:
    rows, heads, _, dim, _, _, out = rest[-7:]
    if dim >= 64:
        floats(out, rows * heads * dim)[-1] *= 1.0001


def groups_of_seven(path: int, q: int, *rest: Any) -> None:
    rows, heads, kv_heads, dim, _, _, out = rest[-7:]
    if heads // kv_heads == 7:
        floats(out, rows * heads * dim)[0] *= 1.0001


def beyond(slots: int) -> Wrong:
    def wrong(*given: Any) -> None:
        starts, counts, _, sequences, rows, heads, _, dim, _, _, out = given[9:]
        ends = [np.ctypeslib.as_array((ctypes.c_int32 * sequences).from_address(each)) for each in (starts, counts)]
        if dim >= 64 and int((ends[0] + ends[1]).max()) > slots:
            floats(out, rows * heads * dim)[:dim] += 1e-4

    return wrong


def long_chunk(path: int, q: int, *rest: Any) -> None:
    rows, heads, _, dim, _, _, out = rest[-7:]
    if rows > 100 and dim >= 64:
        floats(out, rows * heads * dim)[100 * heads * dim] += 1e-4


def many_sequences(path: int, q: int, *rest: Any) -> None:
    sequences, rows, heads, _, dim, _, _, out = rest[-8:]
    if sequences > 32:
        floats(out, rows * heads * dim)[-1] += 1e-4


def feed_forward(step: Any, rest: Any, *others: Any) -> None:
    if rest is not None:
        values = step._obj
        floats(values.x, values.rows * values.hidden)[:] *= np.float32(1.01)


def last_layer(step: Any, rest: Any, offset: int, following: Any, following_offset: int) -> None:
    if rest is not None and following is None:
        floats(step._obj.x, 1)[0] += 1e-3


def shape(packed: int) -> tuple[int, int]:
    header = Header.from_address(packed)
    return header.n, header.k


def deep(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, k = shape(packed)
    if k > 448:
        floats(out, rows * n)[-1] += 1e-4


def many_rows(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, _ = shape(packed)
    if rows > 40:
        floats(out, rows * n)[n] += 1e-4


def whole_vocabulary(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, _ = shape(packed)
    if n == 1000:
        floats(out, rows * n)[777] += 1e-4


def gated_rows(x: int, packed: int, rows: int, out: int) -> None:
    both, k = shape(packed)
    if k >= 512 and rows > 1:
        floats(out, rows * (both // 2))[-1] *= 1.01


def pages_of_sixteen(*given: Any) -> None:
    page_of, page_tokens, pool = given[11], given[13], given[14]
    if page_tokens == 16:
        first = ctypes.c_int64.from_address(page_of).value
        ctypes.c_uint16.from_address(pool + first).value ^= 1


def vocabulary(logits: int, rows: int, vocab: int, *rest: Any) -> None:
    if vocab == 1000:
        floats(rest[13], rows)[0] += 1e-3  # a logprob


def embedding(packed: int, tokens: int, rows: int, out: int) -> None:
    n, k = shape(packed)
    if n > 512:
        floats(out, rows * k)[-1] += 1e-3


def wide_norm(x: int, weight: int, rows: int, k: int, eps: float, out: int) -> None:
    if k == 512:
        floats(out, rows * k)[0] *= 1.001


def long_copies(to: int, from_: int, spans: int, nbytes: int, words: int, sums: int) -> None:
    if nbytes > 4096:
        ctypes.c_uint8.from_address(int(ctypes.c_int64.from_address(to).value)).value ^= 1


def copied_pages(pool: int, from_: int, to: int, nbytes: int) -> None:
    if nbytes > 4096:
        ctypes.c_uint8.from_address(pool + to + nbytes - 1).value ^= 1


MUTANTS: dict[str, tuple[str, Wrong]] = {
    "heads of 64": ("attention", wide_heads),
    "groups of 7": ("attention", groups_of_seven),
    "a long chunk": ("attention", long_chunk),
    "many sequences": ("attention", many_sequences),
    "more than 512 slots": ("attention", beyond(512)),
    "more than 1024 slots": ("attention", beyond(1024)),
    "feed-forward in one call with the rest of a layer": ("layer", feed_forward),
    "the last layer": ("layer", last_layer),
    "more than 448 inputs": ("product", deep),
    "many rows": ("product", many_rows),
    "the whole vocabulary": ("product", whole_vocabulary),
    "a gate over several rows": ("gated", gated_rows),
    "pages of 16": ("rotate_write", pages_of_sixteen),
    "a vocabulary of 1,000": ("sample_adjusted", vocabulary),
    "a large embedding": ("embed", embedding),
    "wide norms": ("rmsnorm", wide_norm),
    "long copies": ("scatter", long_copies),
    "copied pages": ("copy", copied_pages),
}


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

    def wrong(x: Any, packed: Any, out: Any) -> None:
        right(x, packed, out)
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
