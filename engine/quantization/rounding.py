"""Rounds the rows of a matrix to int8, or to int4 with a small integer factor per group.

int8: one scale per row, max|w| / 127. int4: the row is scaled the same way, and each group of it becomes
(nibble - zero) * factor with the factor and the zero that leave the least squared error. All of these fit int8, so that a
product can multiply the widened weights as it multiplies int8 ones."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Form, Integers

Floats = NDArray[np.float32]
Rows = Callable[[int, int], Floats]  # rows first..last of a matrix as fp32

SLICE = 1 << 21  # numbers that are rounded together
_MOST = 127
_NIBBLES = 15
_AROUND = (0, 1, -1)  # factors that are tried, beside the one that just covers the group


def rounded(form: Form, n: int, k: int, rows: Rows) -> Integers:
    """A matrix of n rows in this form: int8 or int4."""
    groups = k // form.group if form.group else 1
    values, scales = np.empty((n, k), np.int8), np.empty(n, np.float32)
    zeros = np.empty((n, groups), np.int8) if form.scheme == "int4" else None
    factors = np.empty((n, groups), np.uint8) if form.scheme == "int4" else None
    step = max(1, SLICE // k)
    for first in range(0, n, step):
        some = slice(first, min(n, first + step))
        weights = rows(some.start, some.stop)
        scales[some] = np.abs(weights).max(1) / np.float32(_MOST)
        scaled = weights * _inverse(scales[some])[:, None]
        if zeros is None or factors is None:
            values[some] = np.clip(np.rint(scaled), -_MOST, _MOST)
        else:
            parts = scaled.reshape(len(scaled), groups, form.group)
            nibbles, zeros[some], factors[some] = nibbles_of(parts)
            values[some] = nibbles.reshape(scaled.shape)
    return Integers(form, values, scales, zeros, factors)


def nibbles_of(parts: Floats) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.uint8]]:
    """Groups [rows, groups, group] of scaled weights -> nibbles, zeros and factors."""
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    covering = np.ceil((high - low) / np.float32(_NIBBLES))
    best: tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.uint8]] | None = None
    least = np.full(low.shape, np.inf, np.float32)
    for change in _AROUND:
        factor = np.clip(covering + change, 1, 2 * _MOST // _NIBBLES + 1).astype(np.float32)
        zero = np.clip(np.rint(-low / factor), 0, _NIBBLES)
        zero = np.minimum(zero, np.floor(128 / factor))  # the lowest value, -zero * factor, fits int8
        top = np.minimum(_NIBBLES, zero + np.floor(_MOST / factor))  # and so does the highest
        nibbles = np.clip(np.rint(parts / factor[..., None]) + zero[..., None], 0, top[..., None])
        error = np.square((nibbles - zero[..., None]) * factor[..., None] - parts).sum(2)
        better = error < least
        if best is None:
            best = nibbles.astype(np.int8), zero.astype(np.int8), factor.astype(np.uint8)
        else:
            best[0][better], best[1][better], best[2][better] = nibbles[better], zero[better], factor[better]
        least = np.minimum(least, error)
    assert best is not None
    return best


def _inverse(scales: Floats) -> Floats:
    """1 / scale; 0 where the scale is too small to divide by."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    result: Floats = np.where(np.isfinite(inverse), inverse, np.float32(0))
    return result
