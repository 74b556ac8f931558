"""The part of the fixed self-test (`selftest.py`) that computes mixtures of experts."""

from collections.abc import Iterator

import numpy as np

from baton_kernels.arrays import PATHS, Array
from baton_kernels.experts import Mixture, combine, experts, route
from baton_kernels.fixed import numbers, packed
from baton_kernels.layer import ACTIVATIONS, CLAMPED_SWIGLU
from baton_kernels.rows import clip

_EXPERTS, _HIDDEN = 5, 66
_WIDTHS = (64, 40)  # gate and up begin at a panel, or inside of one
_ROWS = (1, 4, 40)


def mixtures() -> Iterator[Array]:
    """Routes with equal scores, extreme ones and NaN, sums of rows, clips, and whole mixtures on every path."""
    scores = np.rint(numbers(23, 40, 20) * np.float32(8))
    scores[1], scores[2, 3], scores[3, 4], scores[4] = 0, np.nan, np.inf, scores[4] * np.float32(60)
    for chosen in (1, 4, 19):
        for normalised in (False, True):
            for weighed, factor in (("gated", 1.0), ("", 1.0), ("whole", 2.5)):
                ids, weights = route(scores, chosen, normalised=normalised, shared=weighed, factor=factor)
                yield from (ids, np.isnan(weights), np.where(np.isnan(weights), np.float32(0), weights))
    y, places, residual = numbers(24, 9, 70), np.arange(15, dtype=np.int32).reshape(5, 3) * 2 % 9, numbers(25, 5, 70)
    for more in (None, residual):
        out = np.empty_like(residual)
        combine(y, places, numbers(26, 5, 3), out, more)
        yield out
    clipped = numbers(27, 3, 70)
    clip(clipped, 0.25)
    yield clipped
    for path in PATHS:
        for width in _WIDTHS:
            for shared in (False, True):
                yield from _whole(path, width, shared=shared)
            yield from _whole(path, width, biased=True)


def _whole(path: str, width: int, *, shared: bool = False, biased: bool = False) -> Iterator[Array]:
    """`biased`: router and experts have biases, and an activation of gate and up together."""
    gate_up = [packed(path, numbers(28 + each, 2 * width, _HIDDEN)) for each in range(_EXPERTS)]
    down = [packed(path, numbers(40 + each, _HIDDEN, width)) for each in range(_EXPERTS)]
    mixture = Mixture(
        router=packed("fp32", numbers(27, _EXPERTS + shared, _HIDDEN)),
        gate_up=np.stack(gate_up),
        down=np.stack(down),
        chosen=2,
        normalised=shared,
        shared_gate_up=packed(path, numbers(50, 2 * width + 64, _HIDDEN)) if shared else None,
        shared_down=packed(path, numbers(51, _HIDDEN, width + 32)) if shared else None,
        activation=CLAMPED_SWIGLU if biased else ACTIVATIONS[0],
        router_bias=numbers(52, _EXPERTS) if biased else None,
        gate_up_bias=numbers(53, _EXPERTS, 2 * width) if biased else None,
        down_bias=numbers(54, _EXPERTS, _HIDDEN) if biased else None,
    )
    for rows in _ROWS:
        x, out = numbers(29, rows, _HIDDEN), numbers(30, rows, _HIDDEN)
        experts(x, mixture, out, out)
        yield out
