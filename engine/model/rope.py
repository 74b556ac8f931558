"""The rotary tables, from exact additions and multiplications only.

They are computed once, when weights are packed, and mapped from then on. Their bits must be equal on every machine, but
the pow and cos of libraries differ in the last place between processors. So powers come from `decimal`, and sine and
cosine from a reduction and a series of our own in double precision. Angles are rounded to fp32 as in transformers."""

from decimal import Decimal, localcontext
from math import factorial

import numpy as np
from numpy.typing import NDArray

from engine.model.config import Rope

_TWO_PI = 6.283185307179586
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)  # 33 bits each
_CHUNK = 4096  # positions at once


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    with localcontext() as context:
        context.prec = 40
        theta = Decimal(rope.theta)
        exact = [float(1 / theta ** (Decimal(2 * i) / head_dim)) for i in range(head_dim // 2)]
    return np.array([_scaled(rope, frequency) for frequency in exact], np.float64).astype(np.float32)


def rotary_tables(rope: Rope, head_dim: int, cos: NDArray[np.float32], sin: NDArray[np.float32]) -> None:
    """Fills cos and sin, [positions, head_dim / 2]."""
    inverse = inverse_frequencies(rope, head_dim)
    for first in range(0, len(cos), _CHUNK):
        positions = np.arange(first, min(first + _CHUNK, len(cos)), dtype=np.float32)
        angles = (positions[:, None] * inverse).astype(np.float64)  # the product is rounded to fp32
        _cos_sin(angles, cos[first : first + _CHUNK], sin[first : first + _CHUNK])


def _scaled(rope: Rope, frequency: float) -> float:
    if rope.kind == "none":
        return frequency
    if rope.kind == "linear":
        return frequency / rope.factor
    turns = rope.original_context * frequency / _TWO_PI  # turns of this dimension over the original context
    if turns < rope.low_freq_factor:
        return frequency / rope.factor
    if turns > rope.high_freq_factor:
        return frequency
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - smooth) * frequency / rope.factor + smooth * frequency


def _cos_sin(angles: NDArray[np.float64], cos: NDArray[np.float32], sin: NDArray[np.float32]) -> None:
    quarter = np.rint(angles * _TWO_OVER_PI)
    rest = angles
    for part in _HALF_PI_PARTS:  # the product with the first part is exact below 2^20 quarters
        rest = rest - quarter * part
    square = rest * rest
    sine, cosine = np.zeros_like(rest), np.zeros_like(rest)
    for n in range(9, -1, -1):
        sign = -1.0 if n % 2 else 1.0
        cosine = cosine * square + sign / factorial(2 * n)
        sine = sine * square + sign / factorial(2 * n + 1)
    sine = sine * rest
    turn = quarter.astype(np.int64) & 3
    swapped = (turn & 1).astype(bool)
    cos[...] = np.where(swapped, sine, cosine) * np.where((turn == 1) | (turn == 2), -1.0, 1.0)
    sin[...] = np.where(swapped, cosine, sine) * np.where(turn >= 2, -1.0, 1.0)
