"""Finds out whether the groups' scales of an int4 matrix are small multiples of one scale per output.

Then the nibbles times their factors are int8, and products need no fp32 operation per group (form int4)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_MOST = 17
_NEUTRAL = 8  # the nibble that means 0 where there are no zeros


def progressive(
    scales: Floats, zeros: NDArray[np.int8] | None, group: int
) -> tuple[Floats, NDArray[np.uint8], NDArray[np.int8]] | None:
    """scales [n, groups] -> scales [n], factors and zeros [n, groups], or None. Exact: no number changes."""
    if group < 32 or not np.isfinite(scales).all() or (scales < 0).any():
        return None
    least = np.where(scales > 0, scales, np.inf).min(1).astype(np.float32)
    least = np.where(np.isfinite(least), least, np.float32(1))
    found, factors = np.zeros(len(scales), np.float32), np.ones(scales.shape, np.uint8)
    for part in range(1, _MOST + 1):
        base = (least / np.float32(part)).astype(np.float32)
        ratio = np.rint(scales / base[:, None])
        fits = ((ratio * base[:, None]).astype(np.float32) == scales).all(1) & (ratio.max(1) <= _MOST) & (found == 0)
        found[fits] = base[fits]
        factors[fits] = ratio[fits].astype(np.uint8)
    taken = np.full(scales.shape, _NEUTRAL, np.int8) if zeros is None else zeros
    low, high = taken.astype(np.int16) * factors, (15 - taken.astype(np.int16)) * factors
    if (found == 0).any() or low.max() > 128 or high.max() > 127 or taken.min() < 0 or taken.max() > 15:
        return None
    return found, factors, np.ascontiguousarray(taken)
