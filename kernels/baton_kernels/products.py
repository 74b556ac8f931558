"""Packed weights and the products on them: pack once, gather embedding rows, multiply, gate.

A packed matrix says its own form (`forms.py`), so products take any. A product's output row depends on its input row
alone: the recipe of its form runs over k in one order whatever else is computed."""

from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import numpy as np

from baton_kernels.arrays import F16, F32, I8, I32, U8, U16, Array, buffer, pointer, rank, writable
from baton_kernels.forms import MatrixForm, shape_of
from baton_kernels.layer import ACTIVATIONS, CLAMPED_SWIGLU
from baton_kernels.library import KernelError, check, load

_SOURCES = {F32: 0, F16: 1, U16: 2}
_SCALES: dict[str, np.dtype[Any]] = {"fp32": F32, "fp16": F16, "bf16": U16}


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix in its canonical integer form, before it is packed. G is the number of groups of an output."""

    form: MatrixForm
    values: Array  # int8 [n, k]; nibbles as 0..15
    scales: Array  # int8, int4: float32 [n]; grouped: of the form's type [n, G], bfloat16 as uint16
    offsets: Array | None = None  # zeros as int8, or minima of the form's type: [n, G]
    factors: Array | None = None  # int4: uint8 [n, G]
    order: Array | None = None  # int32 [k]: input i is element order[i] of a row

    @property
    def nbytes(self) -> int:
        """Size when packed."""
        return int(self.form.header(*rank("values", self.values, 2)).bytes)


def pack_bytes(path: str, n: int, k: int) -> int:
    """Size of a packed dense weight of n outputs and k inputs."""
    return int(MatrixForm(path).header(n, k).bytes)


def pack(path: str, weight: Array, out: Array) -> None:
    """weight [n, k] as float32, float16 or bfloat16 bits (uint16) -> out, `pack_bytes` of uint8."""
    n, k = rank("weight", weight, 2)
    source = _SOURCES.get(weight.dtype)
    if source is None:
        raise KernelError(f"weight: is {weight.dtype}, must be float32, float16 or uint16 (bfloat16 bits)")
    header = MatrixForm(path).header(n, k)
    check(
        load().pack(
            addressof(header), source, pointer("weight", weight, weight.dtype, (n, k)), _target(out, header.bytes)
        )
    )


def pack_integers(matrix: Integers, out: Array) -> None:
    """A matrix in its canonical form -> out, `matrix.nbytes` of uint8."""
    form, (n, k) = matrix.form, rank("values", matrix.values, 2)
    header = form.header(n, k)
    groups, kind = (n, k // form.group if form.group else 1), _SCALES[form.scales]
    whole = form.scheme in ("int8", "int4")
    offsets = factors = order = None
    if form.scheme == "int4" or form.offset != "none":
        wanted = kind if form.offset == "minimum" else I8
        offsets = pointer("offsets", _given("offsets", matrix.offsets), wanted, groups)
    if form.scheme == "int4":
        factors = pointer("factors", _given("factors", matrix.factors), U8, groups)
    if offsets is not None and form.scheme in ("int4", "int4-groups") and form.offset != "minimum":
        _fit_bytes(matrix)
    if form.ordered:
        given = _given("order", matrix.order)
        if not np.array_equal(np.sort(given), np.arange(k)):
            raise KernelError(f"order: is no order of {k} inputs")
        order = pointer("order", given, I32, (k,))
    check(
        load().pack_integers(
            addressof(header),
            pointer("values", matrix.values, I8, (n, k)),
            pointer("scales", matrix.scales, F32 if whole else kind, (n,) if whole else groups),
            offsets,
            factors,
            order,
            _target(out, header.bytes),
        )
    )


def _fit_bytes(matrix: Integers) -> None:
    """Each of the sixteen nibbles, less its zero and times its factor, is a number of eight bits: bodies rely on it."""
    zeros = _given("offsets", matrix.offsets).astype(np.int16)
    factors = 1 if matrix.factors is None else matrix.factors.astype(np.int16)
    if (-zeros * factors < -128).any() or ((15 - zeros) * factors > 127).any():
        raise KernelError("offsets: a nibble minus its zero, times its factor, must be within -128..127")


def embed(packed: Array, tokens: Array, out: Array, *, factor: float = 1.0) -> None:
    """out [rows, k] = factor * rows `tokens` of the packed weight."""
    (rows,), (_, k) = rank("tokens", tokens, 1), shape_of(packed)
    check(
        load().embed(
            buffer("packed", packed, 0),
            pointer("tokens", tokens, I32, (rows,)),
            rows,
            factor,
            writable("out", out, F32, (rows, k)),
        )
    )


def product(x: Array, packed: Array, out: Array, bias: Array | None = None, residual: Array | None = None) -> None:
    """out [rows, n] = x [rows, k] times the packed weight, then + bias [n], then + residual [rows, n] (may be out)."""
    (rows, _), (n, k) = rank("x", x, 2), shape_of(packed)
    check(
        load().product(
            pointer("x", x, F32, (rows, k)),
            buffer("packed", packed, 0),
            rows,
            writable("out", out, F32, (rows, n)),
            None if bias is None else pointer("bias", bias, F32, (n,)),
            None if residual is None else pointer("residual", residual, F32, (rows, n)),
        )
    )


def gated(
    x: Array, packed_gate_up: Array, out: Array, bias: Array | None = None, *, activation: str = ACTIVATIONS[0]
) -> None:
    """out [rows, n] = activation(gate) * up, gate and up packed together as [2n, k], gate first; bias [2n]. The
    activation `clamped_swiglu` computes (up + 1) * gate * sigmoid(1.702 * gate), the gate at most 7, up within +-7."""
    (rows, _), (both, k) = rank("x", x, 2), shape_of(packed_gate_up)
    check(
        load().gated(
            pointer("x", x, F32, (rows, k)),
            buffer("packed_gate_up", packed_gate_up, 0),
            rows,
            writable("out", out, F32, (rows, both // 2)),
            None if bias is None else pointer("bias", bias, F32, (both,)),
            activation_index(activation),
        )
    )


def between(gate_up: Array, out: Array, *, activation: str) -> None:
    """What lies between the products of an MLP: out [rows, n] = activation(gate) * up of gate_up [rows, 2n], gate
    first, or the activation of [rows, n] where the MLP has no gate."""
    (rows, both), (_, n) = rank("gate_up", gate_up, 2), rank("out", out, 2)
    if both not in (n, 2 * n):
        raise KernelError(f"gate_up: has {both} columns, must be {n} or {2 * n}")
    at, index = pointer("gate_up", gate_up, F32, (rows, both)), activation_index(activation, gated=both == 2 * n)
    load().between(at, writable("out", out, F32, (rows, n)), rows, n, index, both == 2 * n)


def activated(x: Array, packed: Array, out: Array, bias: Array | None = None, *, activation: str) -> None:
    """out [rows, n] = activation of (x times the packed weight, then + bias [n])."""
    (rows, _), (n, k) = rank("x", x, 2), shape_of(packed)
    check(
        load().activated(
            pointer("x", x, F32, (rows, k)),
            buffer("packed", packed, 0),
            rows,
            writable("out", out, F32, (rows, n)),
            None if bias is None else pointer("bias", bias, F32, (n,)),
            activation_index(activation, gated=False),
        )
    )


def activation_index(activation: str, *, gated: bool = True) -> int:
    if activation == CLAMPED_SWIGLU and not gated:
        raise KernelError(f"activation: {activation!r} is a function of gate and up, and there is no gate")
    if activation not in ACTIVATIONS:
        raise KernelError(f"activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS.index(activation)


def _given(name: str, array: Array | None) -> Array:
    if array is None:
        raise KernelError(f"{name}: the form has them, but they are not given")
    return array


def _target(out: Array, size: int) -> int:
    if not out.flags.writeable:
        raise KernelError("out: is read-only but is written to")
    return buffer("out", out, size)
