"""The inputs of a layer, and how errors at them are made up for: what is kept, and the memory that it takes."""

import tracemalloc

import numpy as np
import pytest

from engine.quantization import compensated
from engine.quantization.compensated import Compensation
from engine.quantization.inputs import LayerInputs

WIDTH = 640  # more than two panels
MATRIX = WIDTH * WIDTH * 8  # bytes in double precision


def rows(width: int = WIDTH) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    rng = np.random.default_rng(6)
    return (rng.standard_normal((3 * width, width)) @ rng.standard_normal((width, width))).astype(np.float32)


@pytest.mark.parametrize("panel", [1, 16, 20, 48, 256])
def test_errors_are_spread_by_the_inverse_of_the_moments(panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compensated, "_PANEL", panel)
    given = rows(48)
    found, moments = Compensation.of([given], 48), given.T @ given
    exact = moments.astype(np.float64) + 0.01 * np.diag(moments).mean() * np.eye(48)
    ordered = exact[np.ix_(found.order, found.order)]
    assert (np.diff(np.diag(ordered)) <= 0).all() and (found.importance == np.diag(moments)).all()
    assert np.allclose(found.spread.T.astype(np.float64) @ found.spread @ ordered, np.eye(48), atol=1e-3)
    assert np.allclose(found.spread, np.linalg.cholesky(np.linalg.inv(ordered)).T, rtol=1e-4, atol=1e-9)
    assert not np.tril(found.spread, -1).any()


def test_the_library_gets_panels_only_because_it_copies_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, panel = list[int](), 32
    monkeypatch.setattr(compensated, "_PANEL", panel)
    for name in ("inv", "cholesky"):
        right = getattr(np.linalg, name)
        monkeypatch.setattr(np.linalg, name, lambda matrix, right=right: (sizes.append(len(matrix)), right(matrix))[1])
    Compensation.of([rows()], WIDTH)
    assert len(sizes) == 3 * WIDTH // panel and max(sizes) == panel


@pytest.mark.parametrize("heard", [False, True])
def test_no_more_than_one_and_a_half_matrices_in_double_precision_are_held(heard: bool) -> None:
    given, inputs = rows(), LayerInputs(("down",))
    Compensation.of([given], WIDTH)
    tracemalloc.start()
    try:
        if heard:
            inputs.heard("down", given)
            inputs.compensation("down", WIDTH)
        else:
            Compensation.of([given], WIDTH)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1.5 * MATRIX <= peak < 1.8 * MATRIX


def test_matrices_with_the_same_inputs_share_what_is_made_of_them() -> None:
    inputs, rng = LayerInputs(("qkv", "o", "experts_down.3")), np.random.default_rng(7)
    for name in ("qkv", "o", "down"):
        inputs.heard(name, rng.standard_normal((80, 64)).astype(np.float32))
    first = inputs.compensation("qkv", 64)
    assert inputs.compensation("qkv", 64) is first is not inputs.compensation("o", 64)
    for name in ("experts_down.3", "down"):  # the one was never heard, the other never wanted
        unseen = inputs.compensation(name, 64)
        assert not unseen.importance.any() and (np.diag(unseen.spread) > 0).all()


def test_the_system_gets_freed_rows_back_before_wide_moments_are_inverted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed rows that stay in the heap would take a third more than the matrices."""
    calls = list[str]()
    monkeypatch.setattr(compensated, "_give_back", lambda: calls.append("back"))
    monkeypatch.setattr(compensated, "_WIDE", WIDTH)
    for width in (WIDTH, WIDTH // 2):
        Compensation.of([rows(width)], width)
    assert calls == ["back"]


def test_many_rows_become_moments_at_once_and_few_stay_rows() -> None:
    """Rows of a long text would take more memory than all else; moments of an expert would take more than its rows."""
    rng = np.random.default_rng(8)
    windows = [rng.standard_normal((40, 64)).astype(np.float32) for _ in range(30)]
    tracemalloc.start()
    try:
        inputs = LayerInputs(("qkv", "experts_down.0"))
        for window in windows:
            inputs.heard("qkv", window.copy())
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 64 * 64 * 4 <= held < 3 * 64 * 64 * 4 < sum(each.nbytes for each in windows)
    inputs.heard("experts_down.0", windows[0])
    for name, heard in (("qkv", windows), ("experts_down.0", windows[:1])):
        ours, whole = inputs.compensation(name, 64), Compensation.of(list(heard), 64)
        assert (ours.order == whole.order).all() and (ours.spread == whole.spread).all(), "in the same order"
