"""Products on packed weights: close to float64, equal in bits for every body, thread count and batch."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference

# rows, n, k: around tiles (1, 2, 4, 6, 8, 12), panels (32), odd k, several row blocks, several stretches of k
SHAPES = [
    (1, 32, 64),
    (1, 1, 1),
    (2, 33, 7),
    (3, 31, 33),
    (4, 64, 16),
    (5, 96, 896),
    (7, 70, 51),
    (9, 17, 128),
    (13, 128, 65),
    (16, 40, 96),
    (25, 64, 100),
    (37, 96, 1601),
    (131, 72, 66),
]


def packed(path, weight):
    out = np.full(bk.pack_bytes(path, *weight.shape), 0xFF, np.uint8)
    bk.pack(path, weight, out)
    return out


def multiply(path, x, weight, n, bias=None, residual=None):
    out = np.full((len(x), n), np.nan, np.float32)
    bk.product(x, weight, out, bias, residual)
    return out


@pytest.mark.parametrize("path", bk.PATHS)
@pytest.mark.parametrize("rows,n,k", SHAPES)
def test_every_body_gives_the_same_bits_and_they_are_close_to_the_reference(path, rows, n, k, rng, bits):
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, k), (n, k)))
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((rows, n)).astype(np.float32)
    weight = packed(path, w)
    got = bits.same(lambda: multiply(path, x, weight, n, bias, residual))
    expected = reference.product(path, x, w, bias, residual)
    assert np.abs(got - expected).max() <= 3e-6 * np.sqrt(k) * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("path", bk.PATHS)
def test_a_row_does_not_depend_on_the_rows_beside_it(path, rng):
    n, k = 96, 1700
    x, weight = (
        rng.standard_normal((150, k)).astype(np.float32),
        packed(path, rng.standard_normal((n, k)).astype(np.float32)),
    )
    whole = multiply(path, x, weight, n)
    for size in (1, 2, 3, 5, 8, 11, 13, 24, 40, 77):
        parts = np.concatenate(
            [multiply(path, np.ascontiguousarray(x[i : i + size]), weight, n) for i in range(0, 150, size)]
        )
        assert np.array_equal(parts, whole), f"{size} rows per call"


@pytest.mark.parametrize("path", bk.PATHS)
@pytest.mark.parametrize("rows,n,k", [(1, 32, 64), (3, 48, 33), (14, 64, 96), (40, 50, 130), (110, 32, 900)])
def test_gate_is_silu_of_gate_times_up(path, rows, n, k, rng, bits):
    x, w = rng.standard_normal((rows, k)).astype(np.float32), rng.standard_normal((2 * n, k)).astype(np.float32)
    weight = packed(path, w)

    def compute():
        out = np.full((rows, n), np.nan, np.float32)
        bk.gated(x, weight, out)
        return out

    expected = reference.gated(path, x, w)
    assert np.abs(bits.same(compute) - expected).max() <= 1e-5 * np.sqrt(k) * np.abs(expected).max()


@pytest.mark.parametrize("path", bk.PATHS)
def test_gate_of_extreme_values_is_finite(path):
    weight = packed(path, np.array([[1.0], [1.0]], np.float32))
    x = np.array([[-200.0], [-80.0], [0.0], [80.0], [200.0]], np.float32)
    out = np.full((5, 1), np.nan, np.float32)
    bk.gated(x, weight, out)
    assert np.allclose(out[:, 0], [0.0, 0.0, 0.0, 6400.0, 40000.0])


@pytest.mark.parametrize("path", bk.PATHS)
def test_residual_may_be_the_output_itself(path, rng):
    x, w = rng.standard_normal((20, 64)).astype(np.float32), rng.standard_normal((80, 64)).astype(np.float32)
    residual = rng.standard_normal((20, 80)).astype(np.float32)
    expected = multiply(path, x, packed(path, w), 80, None, residual)
    bk.product(x, packed(path, w), residual, None, residual)
    assert np.array_equal(residual, expected)


@pytest.mark.parametrize("path", bk.PATHS)
@pytest.mark.parametrize("n,k", [(1, 1), (50, 33), (96, 64)])
def test_embedding_reproduces_the_weights_exactly(path, n, k, rng):
    w = reference.bf16(rng.standard_normal((n, k)))
    ids = rng.integers(0, n, 17).astype(np.int32)
    for source in (w, reference.bf16_bits(w)):
        out = np.full((17, k), np.nan, np.float32)
        bk.embed(packed(path, source), ids, out)
        assert np.array_equal(out, w[ids])


def test_fp16_weights_are_widened_exactly(rng):
    w = np.concatenate([rng.standard_normal((3, 40)), [[6e-8] * 40, [65504.0] * 40]]).astype(np.float16)
    out = np.empty((5, 40), np.float32)
    bk.embed(packed("fp32", w), np.arange(5, dtype=np.int32), out)
    assert np.array_equal(out, w.astype(np.float32))


@pytest.mark.parametrize(
    "change,word",
    [
        ({"x": np.zeros((2, 8))}, "x: is float64"),
        ({"x": np.zeros((8, 2), np.float32).T}, "x: .*not C-contiguous"),
        ({"out": np.zeros((2, 5), np.float32)}, "out: "),
        ({"packed": np.zeros(7, np.uint8)}, "packed: "),
        ({"packed": packed("pairs", np.zeros((4, 8), np.float32))[:-1]}, "packed: .* of "),
        ({"bias": np.zeros(5, np.float32)}, "bias: "),
        ({"residual": np.zeros((1, 4), np.float32)}, "residual: "),
    ],
)
def test_wrong_arguments_are_named(change, word):
    right = {
        "x": np.zeros((2, 8), np.float32),
        "packed": packed("pairs", np.zeros((4, 8), np.float32)),
        "out": np.zeros((2, 4), np.float32),
        "bias": None,
        "residual": None,
    }
    bk.product(**right)
    with pytest.raises(bk.KernelError, match=word):
        bk.product(**{**right, **change})


def test_a_token_outside_the_vocabulary_is_refused():
    weight = packed("fp32", np.ones((4, 8), np.float32))
    for token in (-1, 4):
        with pytest.raises(bk.KernelError, match="tokens"):
            bk.embed(weight, np.array([0, token], np.int32), np.empty((2, 8), np.float32))
