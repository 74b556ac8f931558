"""The kernels that Llama has no use for: other norms and activations, sums with the residual, caps, heads without
rope. Each agrees with its reference and has the same bits in every body."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import machine, reference, selftest
from baton_kernels.fixed import packed
from tests.unit.kernels.test_paged import FORMS, TOLERANCE, Case

SHAPES = [(1, 16), (3, 100), (7, 64), (2, 1000), (40, 33)]


def near(got, expected, tolerance=3e-6):
    return np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("rows,k", SHAPES)
def test_norms_and_sums_agree_with_the_reference(rows, k, rng, bits):
    x, y = (rng.standard_normal((rows, k)).astype(np.float32) * 3 + 1 for _ in range(2))
    weight, bias = (rng.standard_normal(k).astype(np.float32) for _ in range(2))

    def layered():
        out = np.full_like(x, np.nan)
        bk.layernorm(x, weight, bias, 1e-5, out)
        return out

    assert near(bits.same(layered), reference.layernorm(x, weight, bias, 1e-5))
    for norm in (weight, None):
        for factor in (1.0, 0.22):

            def added(norm=norm, factor=factor):
                total = x.copy()
                bk.add(total, y, norm=norm, eps=1e-6, factor=factor)
                return total

            inner = y if norm is None else reference.rmsnorm(y, norm, 1e-6)
            assert near(bits.same(added), x + factor * inner)


def test_a_norm_within_rows_leaves_the_other_columns_as_they_are(rng, bits):
    x, weight = rng.standard_normal((5, 90)).astype(np.float32), rng.standard_normal(33).astype(np.float32)

    def within():
        out = x.copy()
        bk.rmsnorm_within(out, weight, 40, 1e-6)
        return out

    got = bits.same(within)
    assert near(got[:, 40:73], reference.rmsnorm(np.ascontiguousarray(x[:, 40:73]), weight, 1e-6))
    assert (got[:, :40] == x[:, :40]).all() and (got[:, 73:] == x[:, 73:]).all()
    with pytest.raises(bk.KernelError, match="first: 60 and 33"):
        bk.rmsnorm_within(x.copy(), weight, 60, 1e-6)


@pytest.mark.parametrize("heads,dim,latent", [(1, 16, 2), (4, 48, 32), (16, 576, 512), (2, 32, 32)])
def test_keys_and_values_share_a_normalised_latent(heads, dim, latent, rng, bits):
    x = rng.standard_normal((5, heads + 2, dim)).astype(np.float32)
    weight, rotated = rng.standard_normal(latent).astype(np.float32), (dim - latent) // 2

    def share():
        out = x.reshape(5, -1).copy()
        bk.share_latent(out, weight, heads, dim, 1e-6)
        return out

    got = bits.same(share).reshape(x.shape)
    normed = reference.rmsnorm(np.ascontiguousarray(x[:, -1, :latent]), weight, 1e-6)
    assert near(got[:, -1, :latent], normed)
    keys = got[:, -2].reshape(5, 2, dim // 2)
    assert (keys[:, :, rotated:].reshape(5, latent) == got[:, -1, :latent]).all()
    assert (keys[:, :, :rotated] == x[:, -2].reshape(5, 2, dim // 2)[:, :, :rotated]).all()
    assert (got[:, :heads] == x[:, :heads]).all() and (got[:, -1, latent:] == x[:, -1, latent:]).all()
    for wrong in (3, dim + 2):
        with pytest.raises(bk.KernelError, match="latent: must be even"):
            bk.share_latent(x.reshape(5, -1).copy(), np.ones(wrong, np.float32), heads, dim, 1e-6)


@pytest.mark.parametrize("limit", [30.0, 0.5])
def test_caps_are_accurate_over_all_sizes(limit, rng, bits):
    sizes = np.concatenate([np.exp(rng.uniform(-60, 20, 4000)), [0.0, 0.625 * limit, 1e30]]).astype(np.float32)
    x = np.stack([sizes, -sizes])

    def compute():
        out = x.copy()
        bk.cap(out, limit)
        return out

    got, expected = bits.same(compute), reference.capped(x, limit)
    assert (np.abs(got - expected) <= 5e-7 * np.abs(expected) + 1e-37).all()
    wrong = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    bk.cap(wrong, limit)
    assert np.isnan(wrong[0, 0]) and wrong[0, 1] == limit and wrong[0, 2] == -limit


@pytest.mark.parametrize("path", bk.PATHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize("rows,n,k", [(1, 32, 70), (5, 64, 64), (40, 50, 33)])
def test_activations_and_biases_inside_an_mlp_agree_with_the_reference(path, activation, rows, n, k, rng, bits):
    x = rng.standard_normal((rows, k)).astype(np.float32)
    weight = rng.standard_normal((2 * n, k)).astype(np.float32) * np.float32(0.3)
    weight *= 10 if activation == "clamped_swiglu" else 1  # many gates and ups lie beyond 7
    if path != "fp32":
        weight = reference.bf16(weight)
    bias, tolerance = rng.standard_normal(2 * n).astype(np.float32), 1e-5
    both, single = packed(path, weight), packed(path, np.ascontiguousarray(weight[:n]))
    for more in (None, bias):

        def gated(more=more):
            out = np.full((rows, n), np.nan, np.float32)
            bk.gated(x, both, out, more, activation=activation)
            return out

        assert near(bits.same(gated), reference.gated(path, x, weight, more, activation), tolerance)

    if activation == "clamped_swiglu":
        with pytest.raises(bk.KernelError, match="there is no gate"):
            bk.activated(x, single, np.empty((rows, n), np.float32), activation=activation)
        return

    def alone():
        out = np.full((rows, n), np.nan, np.float32)
        bk.activated(x, single, out, bias[:n], activation=activation)
        return out

    expected = reference.activated(activation, reference.product(path, x, weight[:n], bias[:n]))
    assert near(bits.same(alone), expected, tolerance)
    with pytest.raises(bk.KernelError, match="activation: 'relu' is not one of silu, gelu_tanh, clamped_swiglu"):
        bk.activated(x, single, np.empty((rows, n), np.float32), activation="relu")


@pytest.mark.parametrize("form", FORMS)
def test_capped_attention_agrees_with_the_reference(form, pages, bits):
    case = Case(pages, form, 6, 2, 64, 32, [(0, 40), (70, 1), (510, 9)])
    capped = bits.same(lambda: case.attend(cap=1.5))
    assert np.abs(capped - case.attend()).max() > 0.01
    at = 0
    for s, (start, count) in enumerate(zip(case.starts, case.counts, strict=True)):
        k, v = case.pages.read(case.tables[s], int(start + count))
        q = case.q[s][start : start + count]
        expected = reference.attention(case.pages.path, q, k, v, int(start), 64**-0.5, 1.5)
        assert np.abs(capped[at : at + count] - expected).max() <= 2 * TOLERANCE[case.pages.path]
        at += count


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [64, 576])
def test_scores_in_stretches_have_bits_of_their_own_in_fp32_alone(form, dim, pages, bits):
    case = Case(pages, form, 16, 1, dim, 32, [(40, 11), (3, 1), (515, 2), (0, 40)])
    got = bits.same(lambda: case.attend(stretches=True))
    assert np.array_equal(got, case.attend()) == (case.pages.path != "fp32")
    assert np.abs(got - case.attend()).max() <= TOLERANCE["fp32"]
    for chunk in (1, 7):
        part = np.concatenate(
            [case.attend([0, 0, 0, at], [0, 0, 0, chunk], stretches=True) for at in range(0, 35, chunk)]
        )
        assert np.array_equal(part, got[14:49])


def test_scores_in_stretches_are_nearer_to_exact_ones(pages):
    """Scores beyond 100, as over a latent: what a sum rounds away is then a part of each probability."""
    case = Case(pages, "fp32", 8, 1, 576, 32, [(0, 100)])
    case.q[0] *= np.float32(40)
    k, v = case.pages.read(case.tables[0], 100)
    exact = reference.attention("fp32", case.q[0], k, v, 0, 576**-0.5)
    one, apart = (np.sqrt(((case.attend(stretches=each) - exact) ** 2).mean()) for each in (False, True))
    assert apart < one / 2


def test_heads_without_rope_are_written_as_they_are(pages, rng, bits):
    qkv, tables = rng.standard_normal((20, 8 * 32)).astype(np.float32), np.array([[1]], np.int32)
    pool, slots = pages("fp32", 32, 2, 32, 2), np.arange(20, dtype=np.int32)
    q = bits.same(lambda: pool.write(qkv, 4, tables, np.zeros(20, int), slots, None, None))
    assert (q.reshape(20, -1) == qkv[:, :128]).all()
    k, v = pool.read(tables[0], 20)
    assert (k.reshape(20, -1) == qkv[:, 128:192]).all() and (v.reshape(20, -1) == qkv[:, 192:]).all()


def test_embedding_rows_are_scaled(rng, bits):
    weight = rng.standard_normal((40, 70)).astype(np.float32)
    out, ids = np.empty((3, 70), np.float32), np.array([0, 7, 39], np.int32)
    bk.embed(packed("fp32", weight), ids, out, factor=3.7)
    assert (out == weight[ids] * np.float32(3.7)).all()


@pytest.mark.parametrize("path", selftest.KNOWN)
def test_every_body_gives_the_known_answers(path):
    for body in {body for found in bk.bodies().values() for body in found}:
        machine.choose(body)
        assert selftest._run(path) == selftest.KNOWN[path], body
