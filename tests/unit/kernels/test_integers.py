"""Products of integer forms: on every body exactly what the recipe says, for random values and for the worst ones."""

from dataclasses import replace

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference
from baton_kernels.forms import OFFSETS, SCALES
from baton_kernels.products import Integers, pack_integers
from tests.unit.kernels.conftest import Bits

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FORMS = (
    bk.MatrixForm("int8"),
    bk.MatrixForm("int8", segments=4),
    bk.MatrixForm("int4", group=32),
    bk.MatrixForm("int4", group=128, segments=2),
    *(bk.MatrixForm("int8-groups", group=32, scales=scales, offset=o) for scales in SCALES for o in OFFSETS),
    *(bk.MatrixForm("int4-groups", group=32, scales=scales, offset=o) for scales in SCALES for o in OFFSETS),
    bk.MatrixForm("int4-groups", group=64, middle=8, scales="fp16"),
    bk.MatrixForm("int4-groups", group=128, offset="zero", scales="bf16", segments=2),
    bk.MatrixForm("int4-groups", group=32, table=TABLE, scales="fp16"),
    bk.MatrixForm("int8-groups", group=16, scales="fp32"),
    *(bk.MatrixForm("int8-groups", group=64, scales="fp32", offset=o) for o in OFFSETS),
    bk.MatrixForm("int8-groups", group=128, scales="fp32"),
)
SHAPES = (
    (1, 32, 256),
    (2, 70, 256),
    (3, 33, 512),
    (5, 96, 1024),
    (13, 64, 256),
    (31, 40, 1280),
    (47, 40, 640),
    (200, 72, 768),
)


@pytest.fixture
def bits() -> Bits:
    return Bits(emulated=True)


def made(form: bk.MatrixForm, n: int, k: int, rng: np.random.Generator, *, worst: bool = False) -> Integers:
    """A matrix of this form. `worst`: each number is as large as the form allows."""
    nibbles, groups = form.scheme.startswith("int4"), k // form.group if form.group else 1
    low, high = (0, 15) if nibbles else (-128, 127)
    values = rng.choice([low, high], (n, k)) if worst else rng.integers(low, high + 1, (n, k))
    scales = np.ldexp(rng.uniform(1, 2, (n, groups)), rng.integers(-14, -2, (n, groups))).astype(np.float32)
    offsets = factors = None
    if form.scheme == "int4":
        offsets = rng.integers(0, 16, (n, groups)).astype(np.int8)
        factors = rng.integers(1, 9, (n, groups)).astype(np.uint8)
    elif form.offset == "zero":
        offsets = (rng.integers(0, 17, (n, groups)) if nibbles else rng.integers(-128, 128, (n, groups))).astype(
            np.int8
        )
    elif form.offset == "minimum":
        offsets = stored(form, -rng.uniform(0, 1, (n, groups)).astype(np.float32))
    if form.scheme in ("int8", "int4"):
        scales = scales[:, 0]
    return Integers(form, values.astype(np.int8), stored(form, np.ascontiguousarray(scales)), offsets, factors)


def stored(form: bk.MatrixForm, values: np.ndarray) -> np.ndarray:
    if form.scales == "fp16":
        return values.astype(np.float16)
    return reference.bf16_bits(values) if form.scales == "bf16" else values


def packed(matrix: Integers) -> np.ndarray:
    out = np.full(matrix.nbytes, 0xFF, np.uint8)
    pack_integers(matrix, out)
    return out


def multiply(x, weight, bias=None, residual=None):
    out = np.full((len(x), bk.shape_of(weight)[0]), np.nan, np.float32)
    bk.product(x, weight, out, bias, residual)
    return out


def silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bits; every NaN counts as the same."""
    return one.shape == other.shape and bool(
        ((one.view(np.uint32) == other.view(np.uint32)) | np.isnan(one) & np.isnan(other)).all()
    )


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows,n,k", SHAPES)
def test_every_body_gives_exactly_what_the_recipe_says(form, rows, n, k, rng, bits):
    if k % (max(form.group, 64) * form.segments):
        k = max(form.group, 64) * form.segments * 2
    matrix, x = made(form, n, k, rng), rng.standard_normal((rows, k)).astype(np.float32)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((rows, n)).astype(np.float32)
    weight = packed(matrix)
    got = bits.same(lambda: multiply(x, weight, bias, residual))
    assert same(got, reference.integers(x, matrix) + bias + residual)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_worst_values_are_exact(form, rng, bits):
    k = max(form.group, 64) * form.segments * 4
    matrix = made(form, 40, k, rng, worst=True)
    x = rng.choice(np.array([-1.0, 1.0], np.float32), (7, k))
    x[0], x[1] = 1.0, -1.0
    weight = packed(matrix)
    assert same(bits.same(lambda: multiply(x, weight)), reference.integers(x, matrix))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_that_are_no_ordinary_numbers(form, rng, bits):
    k = max(form.group, 64) * form.segments * 2
    matrix, x = made(form, 48, k, rng), rng.standard_normal((9, k)).astype(np.float32)
    x[0], x[1], x[2] = 0.0, 1e-32, 1e-39
    x[3, k // 2], x[4, 3], x[5, k - 1] = np.nan, np.inf, -np.inf
    x[6, : k // 2] = 0.0
    x[7] *= np.float32(1e30)
    weight = packed(matrix)
    got = bits.same(lambda: multiply(x, weight))
    assert same(got, reference.integers(x, matrix))
    assert np.isnan(got[3:6]).all() and np.isfinite(np.delete(got, (3, 4, 5), 0)).all()
    assert form.offset == "minimum" or not got[:3].any()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(form, rng):
    k = max(form.group, 64) * form.segments * 8
    weight, x = packed(made(form, 96, k, rng)), rng.standard_normal((150, k)).astype(np.float32)
    whole = multiply(x, weight)
    for size in (1, 2, 3, 5, 8, 11, 13, 24, 40, 77):
        parts = [multiply(np.ascontiguousarray(x[i : i + size]), weight) for i in range(0, 150, size)]
        assert np.array_equal(np.concatenate(parts), whole), f"{size} rows per call"


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows,n", [(1, 32), (3, 48), (14, 64), (110, 32)])
def test_gate_is_silu_of_gate_times_up(form, rows, n, rng, bits):
    k = max(form.group, 64) * form.segments * 2
    matrix, x = made(form, 2 * n, k, rng), rng.standard_normal((rows, k)).astype(np.float32)
    weight = packed(matrix)

    def compute():
        out = np.full((rows, n), np.nan, np.float32)
        bk.gated(x, weight, out)
        return out

    gate, up = np.split(reference.integers(x, matrix).astype(np.float64), 2, axis=1)
    expected = silu(gate) * up
    assert np.allclose(bits.same(compute), expected, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_of_an_embedding_are_the_dequantized_weights(form, rng):
    k = max(form.group, 64) * form.segments
    matrix, ids = made(form, 50, k, rng), rng.integers(0, 50, 17).astype(np.int32)
    out = np.full((17, k), np.nan, np.float32)
    bk.embed(packed(matrix), ids, out)
    assert same(out, reference.dequantized(matrix)[ids])


@pytest.mark.parametrize(
    "form", [FORMS[0], bk.MatrixForm("int4-groups", group=32, offset="zero", scales="fp16")], ids=str
)
def test_inputs_may_stand_in_an_order_of_their_own(form, rng, bits):
    matrix, order = made(form, 40, 256, rng), rng.permutation(256).astype(np.int32)
    ordered = replace(matrix, form=replace(form, ordered=True), order=order)
    x = rng.standard_normal((14, 256)).astype(np.float32)
    weight = packed(ordered)
    got = bits.same(lambda: multiply(x, weight))
    assert same(got, reference.integers(np.ascontiguousarray(x[:, order]), matrix)) and same(
        got, reference.integers(x, ordered)
    )
    rows = np.empty((1, 256), np.float32)
    bk.embed(weight, np.array([7], np.int32), rows)
    assert same(rows, reference.dequantized(ordered)[7:8])
    with pytest.raises(bk.KernelError, match="order: "):
        packed(replace(ordered, order=np.zeros(256, np.int32)))


def test_nibbles_that_are_no_bytes_are_refused(rng):
    """Bodies make bytes of nibbles before they multiply, so a zero far outside of them would be cut."""
    matrix = made(bk.MatrixForm("int4-groups", group=32, offset="zero"), 40, 256, rng)
    assert matrix.offsets is not None
    for zero, fits in ((-112, True), (-113, False), (127, True)):
        zeros = replace(matrix, offsets=np.full_like(matrix.offsets, zero))
        if fits:
            x = rng.standard_normal((20, 256)).astype(np.float32)
            assert same(multiply(x, packed(zeros)), reference.integers(x, zeros))
        else:
            with pytest.raises(bk.KernelError, match="offsets: a nibble minus its zero"):
                packed(zeros)
    small = made(bk.MatrixForm("int4", group=32), 40, 256, rng)
    assert small.factors is not None
    with pytest.raises(bk.KernelError, match="offsets: a nibble minus its zero, times its factor"):
        packed(replace(small, factors=np.full_like(small.factors, 17)))


def test_a_stack_of_several_forms_is_as_its_parts_beside_each_other(rng, bits):
    matrices = [made(form, n, 256, rng) for form, n in ((FORMS[0], 64), (FORMS[4], 40), (FORMS[16], 40))]
    dense = np.zeros(bk.pack_bytes("pairs", 33, 256), np.uint8)
    bk.pack("pairs", rng.standard_normal((33, 256)).astype(np.float32), dense)
    for parts in ([packed(each) for each in matrices], [packed(matrices[0]), dense]):
        stack = np.full(bk.stacked_bytes([len(part) for part in parts]), 0xFF, np.uint8)
        bk.stack(parts, stack)
        assert [bk.form_of(part) for part in bk.parts(stack)] == [bk.form_of(part) for part in parts]
        for rows in (1, 5, 50):
            x = rng.standard_normal((rows, 256)).astype(np.float32)
            bias, residual = (rng.standard_normal((r, bk.shape_of(stack)[0])).astype(np.float32) for r in (1, rows))
            beside = np.concatenate([multiply(x, part) for part in parts], axis=1) + bias + residual
            got = bits.same(lambda x=x, b=bias[0], r=residual, s=stack: multiply(x, s, b, r))
            assert np.array_equal(got, beside)
    halves = [packed(made(FORMS[0], 48, 256, rng)), packed(made(FORMS[4], 48, 256, rng))]
    stack = np.zeros(bk.stacked_bytes([len(part) for part in halves]), np.uint8)
    bk.stack(halves, stack)
    x, out = rng.standard_normal((5, 256)).astype(np.float32), np.empty((5, 48), np.float32)
    bk.gated(x, stack, out)
    gate, up = (multiply(x, part) for part in halves)
    assert np.allclose(out, silu(gate.astype(np.float64)) * up, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_panels_of_a_matrix_are_a_matrix(form, rng):
    k = max(form.group, 64) * form.segments
    weight, x = packed(made(form, 100, k, rng)), rng.standard_normal((3, k)).astype(np.float32)
    whole, some = multiply(x, weight), multiply(x, bk.panels(weight, (1, 3), 36))
    assert np.array_equal(some, np.concatenate([whole[:, 32:64], whole[:, 96:100]], axis=1))


@pytest.mark.parametrize(
    "form,k,word",
    [
        (bk.MatrixForm("int8", segments=3), 256, "segments"),
        (bk.MatrixForm("int8", segments=8), 256, "segment's length"),
        (bk.MatrixForm("int4-groups", group=48), 256, "a group has"),
        (bk.MatrixForm("int8-groups", group=64), 96, "groups do not divide"),
        (bk.MatrixForm("int4", group=32, offset="zero"), 256, "no offset"),
        (bk.MatrixForm("int4-groups", group=32, table=TABLE, offset="zero"), 256, "table"),
        (bk.MatrixForm("nvfp4"), 256, "unknown"),
    ],
)
def test_a_form_that_fits_no_matrix_is_refused(form, k, word):
    with pytest.raises(bk.KernelError, match=word):
        form.header(32, k)
