"""An adapter that is ready to compute with, as a piece of a plan names it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels.deltas import PRODUCTS, AdapterTable, ExpertTable, PackedDelta, delta_table

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingDelta:
    """The addition of an adapter to rows of the embedding: B times the token's column of A."""

    columns: Array  # A transposed, [vocab, rank]: float32, or bfloat16 bits as uint16
    up: PackedDelta  # adds B h to a row, for a row h of columns
    table: AdapterTable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", delta_table((self.up,)))


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedEdges:
    """The changes of one adapter to the embedding and the head. A matrix is packed, and takes the place of the
    model's."""

    embedding: Array | None = None
    head: Array | None = None  # the embedding itself where both are one
    embedding_delta: EmbeddingDelta | None = None
    head_delta: PackedDelta | None = None
    head_table: AdapterTable | None = field(init=False)

    def __post_init__(self) -> None:
        table = None if self.head_delta is None else delta_table((self.head_delta,))
        object.__setattr__(self, "head_table", table)

    @property
    def nbytes(self) -> int:
        matrices = {id(each): each.nbytes for each in (self.embedding, self.head) if each is not None}
        both = self.embedding_delta
        deltas = 0 if both is None else both.columns.nbytes + both.up.nbytes
        return sum(matrices.values()) + deltas + (0 if self.head_delta is None else self.head_delta.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """The deltas that one adapter adds to the products of a model. This object keeps the arrays of `table` alive."""

    digest: str  # hash of its content: equal for adapters that add the same numbers
    deltas: tuple[PackedDelta | None, ...]  # for each layer PRODUCTS of them; None: nothing is added
    rank: int  # largest of any module; 0: it has matrices of its own only
    edges: AdaptedEdges | None = None  # None: embedding and head are the model's
    experts: tuple[PackedDelta | None, ...] = ()  # those of experts, by `expert_place`; (): nothing is added to any
    table: AdapterTable = field(init=False)
    expert_table: ExpertTable | None = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.deltas) % len(PRODUCTS) == 0, "every layer has all products"
        object.__setattr__(self, "table", delta_table(self.deltas))
        object.__setattr__(self, "expert_table", delta_table(self.experts) if self.experts else None)

    @property
    def inside(self) -> bool:
        """Whether it changes a layer."""
        return any(each is not None for each in (*self.deltas, *self.experts))

    @property
    def nbytes(self) -> int:
        layers = sum(each.nbytes for each in (*self.deltas, *self.experts) if each is not None)
        return layers + (0 if self.edges is None else self.edges.nbytes)


RowsOfAdapters = tuple[tuple[AdapterWeights, NDArray[np.int32]], ...]  # those of each content together, ascending


def rows_of_adapters(runs: Iterable[tuple[AdapterWeights | None, int]]) -> RowsOfAdapters:
    """The rows of each adapter, of rows that stand one behind the other: so many of each run."""
    weights, rows, first = dict[str, AdapterWeights](), dict[str, list[int]](), 0
    for adapter, count in runs:
        if adapter is not None and count:
            weights.setdefault(adapter.digest, adapter)
            rows.setdefault(adapter.digest, []).extend(range(first, first + count))
        first += count
    return tuple((weights[digest], np.array(each, np.int32)) for digest, each in rows.items())
