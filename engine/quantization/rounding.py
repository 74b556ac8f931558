"""Rounds the rows of a matrix to int8 with a scale per group, or to int4 with a small integer factor per group.

int8: the scale of each group, or of a row, is max|w| / 127. int4: one scale per row, and each group of it becomes
(nibble - zero) * factor with the factor and the zero that leave the least squared error. All of these fit int8, so
that a product can multiply the widened weights as it multiplies int8 ones."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm

Floats = NDArray[np.float32]
Rows = Callable[[int, int], Floats]  # rows first..last of a matrix as fp32

SLICE = 1 << 21  # numbers that are rounded together
_MOST = 127
_NIBBLES = 15
_AROUND = (0, 1, -1)  # factors that are tried, beside the one that just covers the group


def rounded(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    """A matrix of n rows in this form: int8, int8-groups or int4."""
    return _nibbles(form, n, k, rows) if form.scheme == "int4" else _bytes(form, n, k, rows)


def _bytes(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    groups = k // form.group if form.group else 1
    values, scales = np.empty((n, k), np.int8), np.empty((n, groups), np.float32)
    for some in _slices(n, k):
        parts = rows(some.start, some.stop).reshape(-1, groups, k // groups)
        scales[some] = np.abs(parts).max(2) / np.float32(_MOST)
        scaled = parts * _inverse(scales[some])[..., None]
        values[some] = np.clip(np.rint(scaled), -_MOST, _MOST).reshape(-1, k)
    return Integers(form, values, scales if form.group else scales[:, 0].copy())


def _nibbles(form: MatrixForm, n: int, k: int, rows: Rows) -> Integers:
    groups = k // form.group
    values, scales = np.empty((n, k), np.int8), np.empty(n, np.float32)
    zeros, factors = np.empty((n, groups), np.int8), np.empty((n, groups), np.uint8)
    for some in _slices(n, k):
        weights = rows(some.start, some.stop)
        scales[some] = np.abs(weights).max(1) / np.float32(_MOST)
        scaled = (weights * _inverse(scales[some])[:, None]).reshape(-1, groups, form.group)
        nibbles, zeros[some], factors[some] = nibbles_of(scaled)
        values[some] = nibbles.reshape(-1, k)
    return Integers(form, values, scales, zeros, factors)


def nibbles_of(parts: Floats) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.uint8]]:
    """Groups [rows, groups, group] of scaled weights -> nibbles, zeros and factors."""
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    covering = np.ceil((high - low) / np.float32(_NIBBLES))
    values = np.zeros(parts.shape, np.int8)
    zeros, factors = np.zeros(low.shape, np.int8), np.ones(low.shape, np.uint8)
    least = np.full(low.shape, np.inf, np.float32)
    for change in _AROUND:
        factor = np.clip(covering + change, 1, 2 * _MOST // _NIBBLES + 1).astype(np.float32)
        zero = np.clip(np.rint(-low / factor), 0, _NIBBLES)
        zero = np.minimum(zero, np.floor(128 / factor))  # the lowest value, -zero * factor, fits int8
        top = np.minimum(_NIBBLES, zero + np.floor(_MOST / factor))  # and so does the highest
        nibbles = np.clip(np.rint(parts / factor[..., None]) + zero[..., None], 0, top[..., None])
        error = np.square((nibbles - zero[..., None]) * factor[..., None] - parts).sum(2)
        better = error < least
        values[better] = nibbles[better].astype(np.int8)
        zeros[better], factors[better] = zero[better].astype(np.int8), factor[better].astype(np.uint8)
        least = np.minimum(least, error)
    return values, zeros, factors


def _slices(n: int, k: int) -> list[slice]:
    step = max(1, SLICE // k)
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]


def _inverse(scales: Floats) -> Floats:
    """1 / scale; 0 where the scale is too small to divide by."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    result: Floats = np.where(np.isfinite(inverse), inverse, np.float32(0))
    return result
