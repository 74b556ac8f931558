"""Rounds the rows of a matrix to int8 with a scale per group, or to int4 with a small integer factor per group.

int8: the scale of each group, or of a row, is max|w| / 127. int4: one scale per row, and each group of it becomes
(nibble - zero) * factor with the factor and the zero that leave the least squared error. All of these fit int8, so
that a product can multiply the widened weights as it multiplies int8 ones."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm

Floats = NDArray[np.float32]
Rows = Callable[[int, int], Floats]  # rows first..last of a matrix as fp32

SLICE = 1 << 21  # numbers that are rounded together
MOST, NIBBLES = 127, 15
_MOST_SCALED = 120  # int4: the largest weight of a row, which fifteen steps of the factor 8 just reach
_MOST_FACTOR = 16  # with a larger one, no zero keeps all sixteen nibbles within int8
_FACTORS = (0, 1, -1, -2, -3)  # tried beside the one that just covers a group: cutting off its ends may pay
_ZEROS = (0, -1, 1)  # tried beside the nearest one


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """How the groups of scaled weights become nibbles: (nibble - zero) * factor. [rows, groups]"""

    zeros: Floats
    factors: Floats

    def nibbles(self, parts: Floats) -> Floats:
        """The nearest nibbles of the groups [rows, groups, group]."""
        nibbles: Floats = np.clip(np.rint(parts / self.factors[..., None]) + self.zeros[..., None], 0, NIBBLES)
        return nibbles


def rounded(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    """A matrix of n rows in this form: int8, int8-groups or int4."""
    return _nibbles(form, n, k, rows) if form.scheme == "int4" else _bytes(form, n, k, rows)


def row_scales(weights: Floats) -> Floats:
    """max|w| / 120 of each row, rounded up to sixteen binary digits: its products with factors are exact in fp32."""
    scales = np.abs(weights).max(1) / np.float32(_MOST_SCALED)
    up: Floats = ((scales.view(np.uint32) + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
    return up


def inverse(scales: Floats) -> Floats:
    """1 / scale; 0 where the scale is too small to divide by."""
    with np.errstate(divide="ignore", over="ignore"):
        found = np.float32(1) / scales
    result: Floats = np.where(np.isfinite(found), found, np.float32(0))
    return result


def best_steps(parts: Floats, importance: Floats | None = None) -> GroupSteps:
    """The steps with the least squared error for groups [rows, groups, group]. An input's error counts as much as the
    input is important [groups, group]; None: all count alike."""
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    covering = np.ceil((high - low) / np.float32(NIBBLES))
    best = GroupSteps(np.zeros(low.shape, np.float32), np.ones(low.shape, np.float32))
    least = np.full(low.shape, np.inf, np.float32)
    for change in _FACTORS:
        factors = np.clip(covering + change, 1, _MOST_FACTOR)
        for shift in _ZEROS:
            zeros = np.clip(np.rint(-low / factors) + shift, 0, NIBBLES)
            zeros = np.maximum(zeros, NIBBLES - np.floor(MOST / factors))  # the highest number fits int8
            zeros = np.minimum(zeros, np.floor((MOST + 1) / factors))  # and so does the lowest, -zero * factor
            tried = GroupSteps(zeros, factors)
            missed = np.square((tried.nibbles(parts) - zeros[..., None]) * factors[..., None] - parts)
            error = (missed if importance is None else missed * importance).sum(2)
            better = error < least
            best.zeros[better], best.factors[better] = zeros[better], factors[better]
            least[better] = error[better]
    return best


def _bytes(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    groups = k // form.group if form.group else 1
    values, scales = np.empty((n, k), np.int8), np.empty((n, groups), np.float32)
    for some in _slices(n, k):
        parts = rows(some.start, some.stop).reshape(-1, groups, k // groups)
        scales[some] = np.abs(parts).max(2) / np.float32(MOST)
        scaled = parts * inverse(scales[some])[..., None]
        values[some] = np.clip(np.rint(scaled), -MOST, MOST).reshape(-1, k)
    return Integers(form, values, scales if form.group else scales[:, 0].copy())


def _nibbles(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    groups = k // form.group
    values, scales = np.empty((n, k), np.int8), np.empty(n, np.float32)
    zeros, factors = np.empty((n, groups), np.int8), np.empty((n, groups), np.uint8)
    for some in _slices(n, k):
        weights = rows(some.start, some.stop)
        scales[some] = row_scales(weights)
        parts = (weights * inverse(scales[some])[:, None]).reshape(-1, groups, form.group)
        steps = best_steps(parts)
        values[some] = steps.nibbles(parts).reshape(-1, k)
        zeros[some], factors[some] = steps.zeros, steps.factors
    return Integers(form, values, scales, zeros, factors)


def _slices(n: int, k: int) -> list[slice]:
    step = max(1, SLICE // k)
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]
