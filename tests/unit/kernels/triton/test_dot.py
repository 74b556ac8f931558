"""`tl.dot` in the interpreter sums in one order on every machine, whatever BLAS numpy has."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from baton_kernels.triton.interpreter import dot
from baton_kernels.triton.launch import Launch

SIDE = 16


@triton.jit
def _dot(a, b, start, out, SIDE: tl.constexpr):
    at = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), tl.load(start + at)))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
def test_a_sum_starts_from_the_accumulator_and_takes_k_in_ascending_order(kind):
    """2^24 + 1 rounds to 2^24 in float32: the ones are lost before -2^24 comes, and count after it."""
    a, b = torch.zeros(SIDE, SIDE), torch.ones(SIDE, SIDE)
    a[:, :5] = torch.tensor([1.0, 1.0, -(2.0**24), 1.0, 1.0])
    out = torch.full((SIDE, SIDE), torch.nan)
    arguments = {"a": a.to(kind), "b": b.to(kind), "start": torch.full((SIDE, SIDE), 2.0**24), "out": out}
    Launch("dot", _dot, (1, 1, 1), arguments, {"SIDE": SIDE}).run()
    assert (out == 2.0).all()


def test_an_output_has_the_same_bits_among_any_number_of_rows_and_columns():
    rng = np.random.default_rng(3)
    a, b, start = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 200), (200, 80), (70, 80)))
    whole = dot(a, b, start)
    assert np.allclose(whole, start + a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)
    for rows, columns in ((1, 1), (1, 80), (16, 33), (70, 1), (69, 79)):
        part = dot(a[:rows], b[:, :columns], start[:rows, :columns])
        assert part.tobytes() == whole[:rows, :columns].tobytes()
