"""Rounds a matrix to four bits so that what it computes changes least on inputs that a model really has.

Inputs are rounded one after the other, the most important first; what is lost at one is made up for at those that are
left, as far as inputs that go together with it allow (Frantar et al., GPTQ, arXiv 2210.17323). Zeros and factors of the
groups are chosen before, from the weights as they were."""

import ctypes
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.integers.rounding import NIBBLES, Floats, best_steps, inverse, row_scales

_DAMPING = 0.01  # share of the mean importance, added to each: inputs that hardly occur decide nothing
_WIDE = 1024  # inputs from which a matrix of their moments is worth a call to the system
_BLOCK = 64  # inputs after which those behind them are changed at once
_PANEL = 256  # columns of a factor that are made at once

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Compensation:
    """The inputs of some matrices, and how an error at one of them is made up for at the others."""

    importance: Floats  # [k]
    order: NDArray[np.int64]  # [k], the most important one first
    spread: Floats  # [k, k], in this order: a row has the shares of those behind it

    @classmethod
    def of(cls, rows: list[Floats], width: int, moments: Floats | None = None) -> "Compensation":
        """`rows`: what the matrices read, [some, width] each; none for an expert that no row chose. The list is empty
        afterwards. `moments`: the sums of the products of each two inputs, over rows that are not kept any more. Wide
        matrices take hundreds of megabytes in double precision, so each is dropped as soon as the next one is made of
        it."""
        if moments is None:
            moments = np.zeros((width, width), np.float32)
        while rows:
            some = rows.pop(0)
            moments += some.T @ some
        seen = np.diag(moments).copy()
        importance, never = seen.astype(np.float64), seen == 0
        importance[never] = 1.0 if never.all() else importance[~never].mean()
        order = np.argsort(-importance, kind="stable")
        backwards = order[::-1]
        moments = moments[np.ix_(backwards, backwards)]
        exact = moments.astype(np.float64)
        del moments
        np.fill_diagonal(exact, importance[backwards] + _DAMPING * importance.mean())
        if width >= _WIDE:
            _give_back()
        _factor(exact)
        _invert(exact)
        return cls(seen, order, np.ascontiguousarray(exact[::-1, ::-1], np.float32))


def _factor(matrix: Doubles) -> None:
    """Puts the lower triangle L of matrix = L Lᵀ into its place. numpy's own would take two copies beside it."""
    for first in range(0, len(matrix), _PANEL):
        last = first + _PANEL
        corner = np.linalg.cholesky(matrix[first:last, first:last])
        matrix[first:last, first:last], matrix[first:last, last:] = corner, 0.0
        matrix[last:, first:last] = matrix[last:, first:last] @ np.linalg.inv(corner).T
        for row in range(last, len(matrix), _PANEL):
            panel = matrix[row : row + _PANEL, first:last]
            matrix[row : row + _PANEL, last : row + _PANEL] -= panel @ matrix[last : row + _PANEL, first:last].T


def _invert(lower: Doubles) -> None:
    """Puts the inverse of a lower triangle into its place."""
    for first in range(0, len(lower), _PANEL):
        last = first + _PANEL
        corner = np.linalg.inv(lower[first:last, first:last])
        lower[first:last, :first] = -corner @ (lower[first:last, :first] @ lower[:first, :first])
        lower[first:last, first:last] = corner


def _give_back() -> None:
    """Rows of many windows lie in the heap between what lives on; the system gets the pages of the freed ones back."""
    with suppress(OSError, AttributeError):  # another C library than glibc has no such call
        ctypes.CDLL(None).malloc_trim(0)


def compensated(form: MatrixForm, weights: Floats, inputs: Compensation) -> Integers:
    """`weights` [n, k] in the form int4."""
    groups, order, spread = weights.shape[1] // form.group, inputs.order, inputs.spread
    scales = row_scales(weights)
    scaled = weights * inverse(scales)[:, None]
    importance = inputs.importance.reshape(groups, form.group)
    steps = best_steps(scaled.reshape(-1, groups, form.group), importance / max(importance.mean(), 1e-30))
    rest, nibbles = np.ascontiguousarray(scaled.T[order]), np.empty(scaled.shape[::-1], np.int8)
    del scaled
    group_of = order // form.group
    for first in range(0, len(order), _BLOCK):
        last = min(first + _BLOCK, len(order))
        errors = np.empty((last - first, len(weights)), np.float32)
        for at in range(first, last):
            group = group_of[at]
            factor, zero = steps.factors[:, group], steps.zeros[:, group]
            taken = np.clip(np.rint(rest[at] / factor) + zero, 0, NIBBLES)
            nibbles[order[at]] = taken
            error = (rest[at] - (taken - zero) * factor) / spread[at, at]
            rest[at + 1 : last] -= spread[at, at + 1 : last, None] * error
            errors[at - first] = error
        rest[last:] -= spread[first:last, last:].T @ errors
    values = np.ascontiguousarray(nibbles.T)
    return Integers(form, values, scales, steps.zeros.astype(np.int8), steps.factors.astype(np.uint8))
