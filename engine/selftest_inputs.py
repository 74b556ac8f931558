"""The inputs of the self-test (`engine/selftest.py`): fixed numbers, slices of packed weights, counts of rows.

All of them depend on the model alone, never on the machine, the page size or a setting."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from baton_kernels.selftest import numbers
from engine.model.config import ModelConfig
from engine.model.weights import Bytes, Weights

Array = NDArray[Any]

_PANEL = 32  # columns that are packed together
_PERIOD = 8191  # a prime, so that rows, heads and slots do not repeat each other
_FEWEST = (1, 2, 4, 5, 12, 13)  # counts of rows that every model computes
_MORE = (3, 6, 7, 8, 10, 11, 24, 37, 75, 200)  # as many as the budget allows: tiles of all sizes, many tiles, two blocks
_BUDGET = 150e6  # multiply-adds of the products in slices; the plain body computes them in a tenth of a second
_SLOTS = 1090  # more than two stretches of 512, after which attention folds what it has


def spread(seed: int, *shape: int) -> NDArray[np.float32]:
    """Fixed numbers around zero, of any shape, made from a few thousand."""
    return np.resize(_few(seed), shape)


@cache
def _few(seed: int) -> NDArray[np.float32]:
    return numbers(seed, _PERIOD)


def slots_of(weights: Weights) -> int:
    """Slots of the long sequence, whatever part of the model's context the settings allow."""
    return min(len(weights.cos), _SLOTS)


def row_counts(config: ModelConfig) -> tuple[int, ...]:
    """Counts of rows, ascending."""
    depths = 4 * config.hidden + config.q_width + config.ffn + config.hidden
    left = _BUDGET / (depths * 2 * _PANEL) - sum(_FEWEST)
    counts = list(_FEWEST)
    for count in _MORE:
        if count <= left:
            counts.append(count)
            left -= count
    return tuple(sorted(counts))


def columns(path: str, packed: Bytes, n: int, k: int) -> Iterator[tuple[Bytes, int]]:
    """The first panel of a packed weight, and the last, which may be narrower: each a packed weight of its own."""
    size, panels = kernels.pack_bytes(path, _PANEL, k), -(-n // _PANEL)
    for panel in sorted({0, panels - 1}):
        yield packed[panel * size : (panel + 1) * size], min(_PANEL, n - panel * _PANEL)


def gate_columns(path: str, packed: Bytes, ffn: int, hidden: int) -> tuple[Bytes, int]:
    """Some columns of gate and up, packed together as the whole is. All of them, where up begins inside a panel."""
    if ffn % _PANEL:
        return packed, ffn
    size = kernels.pack_bytes(path, _PANEL, hidden)
    up = ffn // _PANEL * size
    return np.concatenate([packed[:size], packed[up : up + size]]), _PANEL
