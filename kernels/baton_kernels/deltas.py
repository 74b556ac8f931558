"""Low-rank adapters beside products: out += scale * B (A x), for each row with the matrices of the row's adapter.

A and B are fp32, or bf16 that is widened exactly; sums are fp32 in one order, so a row's bits depend on its input and
its adapter alone: neither the batch nor the chunking changes them. Rows without an adapter are not touched. The same
numbers serve products of every form, because they are added to a product's result."""

from collections.abc import Iterator, Sequence
from ctypes import Structure, addressof, c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from baton_kernels.arrays import F32, U16, Array, pointer, rank, writable
from baton_kernels.library import KernelError, check, load

PRODUCTS = ("qkv", "o", "gate_up", "down")  # products of a layer that an adapter can change, in the order of deltas
MOST_PARTS = 3
_PANEL, _LANES, _RANKS = 32, 16, 4  # outputs of a panel of B; A's padding; rows of A that are multiplied together


class _Part(Structure):
    _fields_ = [("columns", c_long), ("rank", c_long), ("scale", c_float)]


class ProductDelta(Structure):
    """The addition of an adapter to one product, as the kernels read it."""

    _fields_ = [
        ("down", c_void_p),
        ("up", c_void_p),
        ("ranks", c_long),
        ("half", c_int),
        ("parts", c_int),
        ("part", _Part * MOST_PARTS),
    ]


class _Adapted(Structure):
    _fields_ = [
        ("deltas", c_void_p),
        ("experts", c_void_p),
        ("starts", c_void_p),
        ("rows", c_void_p),
        ("adapters", c_long),
    ]


@dataclass(frozen=True, slots=True)
class LowRank:
    """The matrices of one part of a product's outputs: both float32, or both bfloat16 bits as uint16."""

    down: Array  # A [rank, k]
    up: Array  # B [columns, rank]
    scale: float


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """The addition of an adapter to one product, packed. It keeps the arrays that `native` names."""

    native: ProductDelta
    down: Array  # [ranks, k], padded with zeros
    up: Array  # panels of 32 outputs: [panel][rank][32], part after part

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


def pack_delta(parts: Sequence[LowRank | None], columns: Sequence[int], k: int) -> PackedDelta:
    """Packs the parts of a product with k inputs. `columns`: outputs of each part; None: nothing is added to them."""
    given = [part for part in parts if part is not None]
    if not 0 < len(parts) <= MOST_PARTS or len(parts) != len(columns) or not given:
        raise KernelError(f"parts: are {len(parts)} with {len(columns)} widths; at most {MOST_PARTS}, and one not None")
    kind = given[0].down.dtype
    if kind not in (F32, U16):
        raise KernelError(f"down: is {kind}, must be float32 or uint16 (bfloat16 bits)")
    for part, width in zip(parts, columns, strict=True):
        if part is not None:
            pointer("down", part.down, kind, (len(part.down), k))
            pointer("up", part.up, kind, (width, len(part.down)))
    ranks = sum(len(part.down) for part in given)
    down = np.zeros((-(-ranks // _RANKS) * _RANKS, -(-k // _LANES) * _LANES), kind)
    down[:ranks, :k] = np.concatenate([part.down for part in given])
    panels = [_panels(part.up) for part in given]
    up = np.concatenate(panels)
    native = ProductDelta(down=_at(down), up=_at(up), ranks=len(down), half=kind == U16, parts=len(parts))
    for number, (part, width) in enumerate(zip(parts, columns, strict=True)):
        native.part[number] = _Part(width, 0, 0.0) if part is None else _Part(width, len(part.down), part.scale)
    return PackedDelta(native, down, up)


AdapterTable = Any  # ctypes array of ProductDelta: PRODUCTS of the first layer, then of the next, and so on
ExpertTable = Any  # the same, of experts: `expert_place` says where


class AdaptedRows:
    """The rows of a step that have adapters, those of each adapter together."""

    def __init__(
        self, tables: Sequence[AdapterTable], rows: Sequence[Array], experts: Sequence[ExpertTable | None] = ()
    ) -> None:
        """`tables`: that of each adapter, which the caller keeps alive; `rows`: its rows, ascending; `experts`: its
        table of them, or None."""
        self._tables = tuple(tables)
        self._experts = tuple(experts) or (None,) * len(self._tables)
        self._addresses = np.array([addressof(table) for table in self._tables], np.uint64)
        self._of_experts = np.array([0 if each is None else addressof(each) for each in self._experts], np.uint64)
        self.starts = np.cumsum([0, *(len(each) for each in rows)], dtype=np.int32)
        self.rows = np.concatenate([np.asarray(each, np.int32) for each in rows])
        places = _at(self._addresses), _at(self._of_experts), _at(self.starts), _at(self.rows)
        self._native = _Adapted(*places, len(self._tables))

    @property
    def address(self) -> int:
        return addressof(self._native)

    def taken(self, rows: Array) -> "AdaptedRows | None":
        """The same for a step that has only these rows, ascending, each at its place among them."""
        found = [(table, experts, mine) for table, experts, mine in self._among(rows) if len(mine)]
        if not found:
            return None
        tables, of_experts, kept = zip(*found, strict=True)
        return AdaptedRows(tables, kept, of_experts)

    def at_expert(self, rows: Array) -> "AdaptedRows | None":
        """The same for the rows of one expert, with the tables of experts."""
        found = [(experts, mine) for _, experts, mine in self._among(rows) if experts is not None and len(mine)]
        return AdaptedRows(*zip(*found, strict=True)) if found else None

    def _among(self, rows: Array) -> Iterator[tuple[AdapterTable, ExpertTable | None, Array]]:
        """Both tables of each adapter, and the places of its rows among these."""
        starts = zip(self.starts, self.starts[1:], strict=False)
        for table, experts, (first, last) in zip(self._tables, self._experts, starts, strict=True):
            mine = np.flatnonzero(np.isin(rows, self.rows[first:last]))
            yield table, experts, mine.astype(np.int32)


def expert_place(layer: int, expert: int, experts: int, *, down: bool = False) -> int:
    """The place of an expert's product in a table: that of gate and up, or that of down. The expert that computes every
    row has the number behind the others."""
    return 2 * (layer * (experts + 1) + expert) + down


def delta_table(deltas: Sequence[PackedDelta | None]) -> AdapterTable:
    """An adapter's deltas as the kernels find them. The caller keeps the deltas alive."""
    return (ProductDelta * len(deltas))(*(ProductDelta() if each is None else each.native for each in deltas))


def add_deltas(x: Array, out: Array, adapted: AdaptedRows, product: int) -> None:
    """Adds to each row of out [rows, n] what its adapter makes of its row of x [rows, k]. `product`: its place in the
    tables of deltas."""
    (rows, k), (_, n) = rank("x", x, 2), rank("out", out, 2)
    if adapted.rows.min() < 0 or adapted.rows.max() >= rows:
        raise KernelError(f"adapted: names rows {adapted.rows.min()} to {adapted.rows.max()} of {rows}")
    at = pointer("x", x, F32, (rows, k))
    check(load().add_deltas(at, k, writable("out", out, F32, (rows, n)), n, adapted.address, product))


def _panels(up: Array) -> Array:
    """B [columns, rank] as panels, flat."""
    columns, count = up.shape
    padded = np.zeros((-(-columns // _PANEL) * _PANEL, count), up.dtype)
    padded[:columns] = up
    flat: Array = np.ascontiguousarray(padded.reshape(-1, _PANEL, count).transpose(0, 2, 1)).reshape(-1)
    return flat


def _at(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
