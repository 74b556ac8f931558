"""The rows of a pass that attend, and what their adapters add: all rows, or in the last layer the sampled ones."""

from dataclasses import dataclass

import numpy as np

from baton_kernels.deltas import PRODUCTS, AdaptedRows, add_deltas
from engine.model.rows import Ints, Rows
from engine.model.weights import Floats


@dataclass(frozen=True, slots=True)
class Queries:
    tables: Ints  # [bands, pieces, most stretches]
    starts: Ints
    counts: Ints
    first_row: Ints
    adapted: AdaptedRows | None

    @classmethod
    def of(cls, rows: Rows) -> "Queries":
        return cls(rows.tables, rows.starts, rows.counts, rows.first_row, rows.adapted)

    @classmethod
    def sampled(cls, rows: Rows) -> "Queries":
        """The sampled rows alone, each at its place among them."""
        owner = np.searchsorted(rows.first_row, rows.sampled, side="right") - 1  # the piece of each sampled row
        pieces, first, counts = np.unique(owner, return_index=True, return_counts=True)
        starts = rows.slots[rows.sampled[first]]  # a piece's sampled rows are its last ones, next to each other
        adapted = None if rows.adapted is None else rows.adapted.taken(rows.sampled)
        tables = np.take(rows.tables, pieces, axis=1)
        return cls(tables, starts, counts.astype(np.int32), first.astype(np.int32), adapted)


def add_adapters(adapted: AdaptedRows | None, layer: int, product: str, x: Floats, out: Floats) -> None:
    """Adds to a layer's product what the rows' adapters make of its inputs."""
    if adapted is not None:
        add_deltas(x, out, adapted, layer * len(PRODUCTS) + PRODUCTS.index(product))
