"""The rotary tables, from exact additions and multiplications only.

They are computed once, when weights are packed, and mapped from then on. Their bits must be equal on every machine, but
the pow and cos of libraries differ in the last place between processors. So powers come from `decimal`, and sine and
cosine from a reduction and a series of our own in double precision. Angles are rounded to fp32 as in transformers."""

import math
from decimal import Decimal, localcontext
from math import factorial

import numpy as np
from numpy.typing import NDArray

from engine.families.rope import Rope

_TWO_PI = 6.283185307179586
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)  # 33 bits each
_CHUNK = 4096  # positions at once


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    """One for each pair of elements that is rotated."""
    dim = rope.dim or head_dim
    with localcontext() as context:
        context.prec = 40
        theta = Decimal(rope.theta)
        exact = [float(1 / theta ** (Decimal(2 * i) / dim)) for i in range(dim // 2)]
    if rope.kind == "yarn":
        scaled = _yarn(rope, dim, exact)
    elif rope.kind == "longrope":
        scaled = [frequency / factor for frequency, factor in zip(exact, rope.factors, strict=True)]
    else:
        scaled = [_scaled(rope, frequency) for frequency in exact]
    return np.array(scaled, np.float64).astype(np.float32)


def rotary_tables(rope: Rope, head_dim: int, cos: NDArray[np.float32], sin: NDArray[np.float32]) -> None:
    """Fills cos and sin, [positions, head_dim / 2]. Elements that are not rotated have the angle 0."""
    inverse = inverse_frequencies(rope, head_dim)
    pairs = len(inverse)
    cos[:, pairs:], sin[:, pairs:] = 1.0, 0.0
    for first in range(0, len(cos), _CHUNK):
        positions = np.arange(first, min(first + _CHUNK, len(cos)), dtype=np.float32)
        angles = (positions[:, None] * inverse).astype(np.float64)  # the product is rounded to fp32
        _cos_sin(angles, cos[first : first + _CHUNK, :pairs], sin[first : first + _CHUNK, :pairs])
    if rope.attention_factor != 1.0:
        for table in (cos, sin):
            table[:, :pairs] *= np.float32(rope.attention_factor)


def head_order(rope: Rope, head_dim: int) -> NDArray[np.int64] | None:
    """The element of a head that stands at each place, so that elements i and i + half of the whole head are the pairs
    that the kernels rotate; None: each stands at its own. Queries and keys have the same order, so scores are equal."""
    dim, half = rope.dim or head_dim, head_dim // 2
    if dim == head_dim and not rope.interleaved:
        return None
    pairs, rest = np.arange(dim // 2), np.arange(dim, head_dim)
    first, second = (2 * pairs, 2 * pairs + 1) if rope.interleaved else (pairs, pairs + dim // 2)
    between = half - dim // 2
    return np.concatenate([first, rest[:between], second, rest[between:]])


def _yarn(rope: Rope, dim: int, exact: list[float]) -> list[float]:
    """Frequencies that turn often over the original context stay; those that turn rarely are divided by the factor; a
    ramp over the dimensions leads from these to those."""
    with localcontext() as context:
        context.prec = 40
        base = 2 * Decimal(rope.theta).ln()
        low, high = (
            float(dim * (Decimal(rope.original_context) / (Decimal(turns) * Decimal(_TWO_PI))).ln() / base)
            for turns in (rope.beta_fast, rope.beta_slow)
        )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(dim // 2)]
    return [each / rope.factor * part + each * (1 - part) for each, part in zip(exact, ramp, strict=True)]


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
