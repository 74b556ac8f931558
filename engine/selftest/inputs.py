"""The inputs of the self-test (`engine/selftest/run.py`): fixed numbers, slices of packed weights, counts of rows.

All of them depend on the model alone, never on the machine, the page size or a setting."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from baton_kernels.fixed import numbers
from engine.model.config import ModelConfig
from engine.model.weights import Bytes, LayerWeights, Weights

Array = NDArray[Any]

PANEL = 32  # columns that are packed together
FEW_ROWS = 12  # rows of a product in one tile
MANY_ROWS = (24, 37, 75, 200)  # rows of products in several tiles, in many, and in two blocks of them
_PERIOD = 8191  # a prime, so that rows, heads and slots do not repeat each other
_FEWEST = (1, 2, 4, 5, 12, 13)  # counts of rows that the plain body computes for every model
_MORE = (3, 6, 8, 10, 11)  # and as many of these as the budget allows
_BUDGET = 35e6  # multiply-adds, which take the plain body less than a tenth of a second
SLOTS = 1090  # more than two stretches of 512, after which attention folds what it has


def spread(seed: int, *shape: int) -> NDArray[np.float32]:
    """Fixed numbers around zero, of any shape, made from a few thousand."""
    return np.resize(_few(seed), shape)


@cache
def _few(seed: int) -> NDArray[np.float32]:
    return numbers(seed, _PERIOD)


def slots_of(weights: Weights) -> int:
    """Slots of the long sequence, whatever part of the model's context the settings allow."""
    return min(len(weights.cos), SLOTS)


def each_window(weights: Weights) -> Iterator[Weights]:
    """The model as if all its layers had the same window, once for each window that one has."""
    config = weights.config
    for window in sorted(set(config.windows)):
        yield replace(weights, config=replace(config, windows=(window,) * config.layers))
    if not config.windows:
        yield weights


def row_counts(config: ModelConfig) -> tuple[int, ...]:
    """Counts of rows, ascending."""
    depths = 4 * config.hidden + config.q_width + config.ffn + config.hidden
    if config.experts:
        depths += 3 * config.hidden + config.expert_ffn + config.shared_ffn
    left = _BUDGET / (depths * 2 * PANEL) - sum(_FEWEST)
    counts = list(_FEWEST)
    for count in _MORE:
        if count <= left:
            counts.append(count)
            left -= count
    return tuple(sorted(counts))


def kinds_of_layers(weights: Weights) -> list[LayerWeights]:
    """The first layer and, where some layers have experts and others none, the first one of the other kind."""
    first = weights.layers[0]
    others = [layer for layer in weights.layers if (layer.router is None) != (first.router is None)]
    return [first, *others[:1]]


def matrices(layer: LayerWeights) -> list[Bytes]:
    """All packed matrices of a layer; of experts those of the first one."""
    experts = [None if each is None else each[0] for each in (layer.experts_gate_up, layer.experts_down)]
    found = [layer.qkv, layer.o, layer.gate_up, layer.down, layer.router, *experts]
    return [matrix for matrix in found if matrix is not None]


def columns(packed: Bytes) -> Iterator[tuple[int, Bytes]]:
    """The first panel of each part of a packed weight, and the last, which may be narrower: each a packed weight of its
    own, with its first column."""
    before = 0
    for part in kernels.parts(packed):
        n, _ = kernels.shape_of(part)
        for panel in sorted({0, -(-n // PANEL) - 1}):
            yield before + panel * PANEL, kernels.panels(part, (panel,), min(PANEL, n - panel * PANEL))
        before += n


def gate_columns(packed: Bytes) -> tuple[Bytes, int]:
    """Some columns of gate and up, packed together as the whole is. All of them, where up begins inside a panel."""
    ffn = kernels.shape_of(packed)[0] // 2
    if ffn % PANEL or len(kernels.parts(packed)) > 1:
        return packed, ffn
    return kernels.panels(packed, (0, ffn // PANEL), 2 * PANEL), PANEL
