"""The rotary tables, from exact additions and multiplications only.

They are computed once, when weights are packed, and mapped from then on. Their bits must be equal on every machine, but
the pow and cos of libraries differ in the last place between processors. So powers come from `decimal`, and sine and
cosine from a reduction and a series of our own in double precision. Frequencies and angles are rounded to fp32 where
transformers rounds them."""

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
    """One for each pair of elements that is rotated. Operations are those of transformers, in fp32 and in its order:
    checkpoints were trained so, and a last place of a frequency is many of them in an angle far into a text."""
    dim = rope.dim or head_dim
    powers = np.array([_power(rope.theta, np.float32(2 * i) / np.float32(dim)) for i in range(dim // 2)], np.float32)
    if rope.kind == "longrope":
        return _reciprocal(np.array(rope.factors, np.float32) * powers)
    exact = _reciprocal(powers)
    if rope.kind == "yarn":
        return _yarn(rope, dim, exact, _reciprocal(np.float32(rope.factor) * powers))
    if rope.kind == "linear":
        return exact / np.float32(rope.factor)
    return _llama3(rope, exact) if rope.kind == "llama3" else exact


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


def _power(theta: float, exponent: np.float32) -> float:
    with localcontext() as context:
        context.prec = 40
        return float(Decimal(theta) ** Decimal(float(exponent)))


def _reciprocal(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.float32(1) / numbers


def _yarn(rope: Rope, dim: int, exact: NDArray[np.float32], divided: NDArray[np.float32]) -> NDArray[np.float32]:
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
    ramp: NDArray[np.float32] = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    stays = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    return divided * (np.float32(1) - stays) + exact * stays


def _llama3(rope: Rope, exact: NDArray[np.float32]) -> NDArray[np.float32]:
    """Long waves are divided by the factor, short ones stay, and those between are mixed by how often they turn."""
    waves = _reciprocal(exact) * np.float32(_TWO_PI)
    turns = _reciprocal(waves) * np.float32(rope.original_context)
    span = np.float32(rope.high_freq_factor - rope.low_freq_factor)
    smooth = (turns - np.float32(rope.low_freq_factor)) / span
    factor = np.float32(rope.factor)
    mixed = (np.float32(1) - smooth) * exact / factor + smooth * exact
    long = waves > np.float32(rope.original_context / rope.low_freq_factor)
    short = waves < np.float32(rope.original_context / rope.high_freq_factor)
    return np.where(long, exact / factor, np.where(short, exact, mixed))


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
