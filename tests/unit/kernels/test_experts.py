"""Mixtures of experts: the router, sums of rows and whole mixtures agree with their references, with the same bits in
every body, and a row has the bits that it has alone."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference, reference_experts
from baton_kernels.experts import Mixture, combine, experts, route
from baton_kernels.fixed import packed
from baton_kernels.forms import stack, stacked_bytes
from baton_kernels.selftest import integers_of

PATHS = (*bk.PATHS, "int8-groups", "int4-groups")


def matrix(form, n, k, rng, seed, group=32):
    """A packed random matrix and its numbers."""
    if form in bk.PATHS:
        weight = rng.standard_normal((n, k)).astype(np.float32) * np.float32(0.2)
        weight = weight if form == "fp32" else reference.bf16(weight)
        return packed(form, weight), weight
    given = bk.MatrixForm(form, group=group, scales="fp16", middle=8 if form == "int4-groups" else 0)
    integers = integers_of(given, n, k, seed)
    out = np.empty(integers.nbytes, np.uint8)
    bk.pack_integers(integers, out)
    return out, integers


def mixture(form, rng, *, count=7, chosen=3, hidden=64, width=64, shared=0, normalised=True, **more):
    """A random mixture, and the numbers of its matrices: router, and of each expert gate_up and down."""
    scored = count + (shared > 0 and more.get("shared_gated", True))
    router = rng.standard_normal((scored, hidden)).astype(np.float32)
    widths = [width] * count + [shared] * (shared > 0)
    each = [(matrix(form, 2 * w, hidden, rng, i), matrix(form, hidden, w, rng, i)) for i, w in enumerate(widths)]
    found = Mixture(
        packed("fp32", router),
        np.stack([gate_up for (gate_up, _), _ in each[:count]]),
        np.stack([down for _, (down, _) in each[:count]]),
        chosen,
        normalised,
        shared_gate_up=each[-1][0][0] if shared else None,
        shared_down=each[-1][1][0] if shared else None,
        **more,
    )
    return found, router, [(gate_up, down) for (_, gate_up), (_, down) in each]


def computed(found, x, residual=None):
    out = np.full_like(x, np.nan)
    experts(x, found, out, residual)
    return out


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(
    "count,chosen,shared,factor",
    [(1, 1, "", 1.0), (8, 2, "gated", 1.0), (60, 4, "gated", 2.5), (128, 8, "", 16.0), (9, 9, "whole", 1.0)],
)
def test_routes_agree_with_the_reference(count, chosen, shared, factor, normalised, rng, bits):
    how = {"normalised": normalised, "shared": shared, "factor": factor}
    scores = rng.standard_normal((33, count + (shared == "gated"))).astype(np.float32) * 3
    ids, weights = reference_experts.route(scores, chosen, **how)
    got = bits.same(lambda: np.concatenate([a.view(np.int32) for a in route(scores, chosen, **how)], 1))
    assert (got[:, :chosen] == ids).all()
    assert np.abs(np.ascontiguousarray(got[:, chosen:]).view(np.float32) - weights).max() <= 3e-6 * factor


def test_equal_scores_go_by_index_and_nan_comes_last(bits):
    scores = np.array([[1, 3, 3, 0, 3], [0, -0.0, 0, 0, 0], [np.nan, 1, np.nan, 2, 1]], np.float32)
    ids = bits.same(lambda: route(scores, 4, normalised=True)[0])
    assert ids.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3], [3, 1, 4, 0]]
    weights = route(scores, 4, normalised=True)[1]
    assert np.isnan(weights[2]).all() and np.isfinite(weights[:2]).all()


def test_sums_of_rows_agree_with_the_reference(rng, bits):
    y, weights = rng.standard_normal((9, 70)).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    places, residual = rng.integers(0, 9, (5, 3)).astype(np.int32), rng.standard_normal((5, 70)).astype(np.float32)
    for more in (None, residual):

        def total(more=more):
            out = np.full((5, 70), np.nan, np.float32) if more is None else more.copy()
            combine(y, places, weights, out, None if more is None else out)
            return out

        expected = (y[places].astype(np.float64) * weights[..., None]).sum(1) + (0 if more is None else more)
        assert np.abs(bits.same(total) - expected).max() <= 1e-5


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("width,shared,gated", [(64, 0, True), (64, 96, True), (96, 64, False)])
def test_mixtures_agree_with_the_reference(form, rows, width, shared, gated, rng, bits):
    more = {"shared_gated": gated, "factor": 1.0 if gated else 1.5}
    found, router, matrices = mixture(form, rng, width=width, shared=shared, **more)
    x, residual = (rng.standard_normal((rows, 64)).astype(np.float32) for _ in range(2))
    got = bits.same(lambda: computed(found, x, residual))
    ids, weights = reference_experts.route(
        reference.product("fp32", x, router), 3, normalised=True, shared=found.shared, factor=found.factor
    )
    expected = reference_experts.mixture(form, x, ids, weights, matrices) + residual
    scale = np.abs(expected).max()
    assert np.abs(got - expected).max() <= (1e-5 if form == "fp32" else 1e-2) * scale


def biases(rng, *, count=7, hidden=64, width=64):
    shapes = {"router_bias": (count,), "gate_up_bias": (count, 2 * width), "down_bias": (count, hidden)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
def test_biases_of_routers_and_experts_agree_with_the_reference(form, rows, activation, rng, bits):
    added = biases(rng)
    added["gate_up_bias"] *= 5  # some gates and ups lie beyond 7
    found, router, matrices = mixture(form, rng, activation=activation, **added)
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    got = bits.same(lambda: computed(found, x))
    scores = reference.product("fp32", x, router) + added["router_bias"]
    ids, weights = reference_experts.route(scores, 3, normalised=True, shared=False)
    each = [*zip(added["gate_up_bias"], added["down_bias"], strict=True)]
    expected = reference_experts.mixture(form, x, ids, weights, matrices, each, activation)
    assert np.abs(got - expected).max() <= (1e-5 if form == "fp32" else 1e-2) * np.abs(expected).max()


def test_a_bias_that_does_not_fit_its_experts_is_refused_by_name(rng):
    for name, bias in biases(rng, count=6).items():
        with pytest.raises(bk.KernelError, match=name):
            mixture("fp32", rng, **{name: bias})[0].native()


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_has_the_bits_that_it_has_alone(form, biased, rng):
    width = 96 if form in ("int8-groups", "int4-groups") else 40
    more = biases(rng, width=width) | {"activation": "clamped_swiglu"} if biased else {"shared": 64}
    found, *_ = mixture(form, rng, width=width, **more)
    x = rng.standard_normal((61, 64)).astype(np.float32)
    together = computed(found, x)
    for threads in (1, 2, 3):
        bk.set_threads(threads)
        alone = np.concatenate([computed(found, x[r : r + 1]) for r in range(len(x))])
        pieces = np.concatenate([computed(found, x[a:b]) for a, b in ((0, 5), (5, 30), (30, 61))])
        assert alone.tobytes() == together.tobytes() == pieces.tobytes()


@pytest.mark.parametrize("form", ["int8-groups", "int4-groups"])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("rows,width", [(1, 192), (20, 64), (100, 192), (37, 320)])
def test_outputs_that_are_packed_at_once_are_as_those_that_went_through_memory(form, group, rows, width, rng, bits):
    """The first product packs its outputs as the rows of the second, if groups are short and there are tiles."""
    width = max(width // group, 1) * group
    (gate_up, _), (down, _) = matrix(form, 2 * width, 128, rng, 1, group), matrix(form, 128, width, rng, 2, group)
    x = rng.standard_normal((rows, 128)).astype(np.float32)
    x[: rows // 10] = 0.0
    alone = Mixture(packed("fp32", np.ones((1, 128), np.float32)), gate_up[None], down[None], 1, True)

    def apart():
        between, out = np.empty((rows, width), np.float32), np.empty((rows, 128), np.float32)
        bk.gated(x, gate_up, between)
        bk.product(between, down, out)
        return out

    assert bits.same(lambda: computed(alone, x)).tobytes() == bits.same(apart).tobytes()
    x[-1, 3] = np.nan
    assert np.isnan(computed(alone, x)[-1]).all() and np.isfinite(computed(alone, x)[:-1]).all()


def test_only_experts_that_a_row_chose_are_read(rng):
    found, *_ = mixture("fp32", rng, chosen=2)
    x, each = rng.standard_normal((1, 64)).astype(np.float32), found.gate_up.shape[1] + found.down.shape[1]
    before = bk.experts.bytes_read()
    computed(found, x)
    assert bk.experts.bytes_read() - before == 2 * each
    computed(found, np.repeat(x, 5, axis=0))
    assert bk.experts.bytes_read() - before == 4 * each, "rows of one expert read it once"


def test_arguments_that_do_not_fit_are_refused_by_name(rng):
    scores = np.zeros((2, 4), np.float32)
    for chosen in (0, 5):
        with pytest.raises(bk.KernelError, match="chosen: must be between 1 and"):
            route(scores, chosen, normalised=False)
    y, out = np.zeros((3, 8), np.float32), np.zeros((1, 8), np.float32)
    with pytest.raises(bk.KernelError, match="places: a row lies outside y"):
        combine(y, np.array([[3]], np.int32), np.ones((1, 1), np.float32), out)
    found, *_ = mixture("fp32", rng)
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(bk.KernelError, match="router: has 7 outputs for 7 experts of which 8 are chosen"):
        computed(Mixture(found.router, found.gate_up, found.down, 8, True), x)
    with pytest.raises(bk.KernelError, match="gate_up, down: an expert of 64 x 64"):
        computed(Mixture(found.router, found.down, found.down, 2, True), x)
    parts = [packed("fp32", np.zeros((64, 64), np.float32))] * 2
    both = np.zeros(stacked_bytes([part.size for part in parts]), np.uint8)
    stack(parts, both)
    with pytest.raises(bk.KernelError, match="experts: a matrix is a stack"):
        computed(Mixture(found.router, np.stack([both] * 7), found.down, 2, True), x)
