"""Rounds a matrix to four bits so that what it computes changes least on inputs that a model really has.

Inputs are rounded one after the other, the most important first; what is lost at one is made up for at those that are
left, as far as inputs that go together with it allow (Frantar et al., GPTQ, arXiv 2210.17323). Zeros and factors of the
groups are chosen before, from the weights as they were."""

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.integers.rounding import NIBBLES, Floats, best_steps, inverse, row_scales

_DAMPING = 0.01  # share of the mean importance, added to each: inputs that hardly occur decide nothing
_BLOCK = 64  # inputs after which those behind them are changed at once


def compensated(form: MatrixForm, weights: Floats, moments: Floats) -> Integers:
    """`weights` [n, k] in the form int4. `moments` [k, k]: sum of the products of each two inputs."""
    groups = weights.shape[1] // form.group
    scales = row_scales(weights)
    scaled = weights * inverse(scales)[:, None]
    importance = np.diag(moments).reshape(groups, form.group)
    steps = best_steps(scaled.reshape(-1, groups, form.group), importance / max(importance.mean(), 1e-30))
    order, spread = _order_and_spread(moments)
    rest, nibbles = np.ascontiguousarray(scaled.T[order]), np.empty(scaled.shape[::-1], np.int8)
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


def _order_and_spread(moments: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The inputs, most important first, and for each how its error is made up for at those behind it [k, k]."""
    exact = moments.astype(np.float64)
    importance = np.diag(exact).copy()
    never = importance == 0
    exact[never, never] = importance[never] = 1.0 if never.all() else importance[~never].mean()
    exact[np.diag_indices_from(exact)] += _DAMPING * importance.mean()
    order = np.argsort(-importance, kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(exact[np.ix_(order, order)])).T
    return order, np.ascontiguousarray(upper, np.float32)
