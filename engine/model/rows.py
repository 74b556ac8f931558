"""The pieces of a plan as the arrays that kernels read, checked before anything is computed.

There is one row per input token, and pieces stand one after the other in the plan's order. A page outside the pool or a
token outside the vocabulary would make kernels read foreign memory. Such a step is refused as a whole, with an error: a
scheduler that plans one has a defect."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton_kernels.deltas import AdaptedRows
from engine.pool.horizon import Horizon
from engine.step.adapted import RowsOfAdapters, rows_of_adapters
from engine.step.plan import Piece

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowLimits:
    vocab: int
    context: int  # slots that a request may have
    pages: int  # pages of the pool
    page_tokens: int
    page_bytes: int
    window: int = 0  # slots that a row may read in bands with windows, its own the last; 0: all
    bands: int = 1  # pages of the same tokens: of the model's layers with windows, then of the others
    full: int = 0  # the last ones of them, which are read from the first slot on though others have windows

    @property
    def horizon(self) -> Horizon:
        return Horizon(self.window, self.page_tokens, self.bands, self.full)


@dataclass(frozen=True, slots=True)
class Rows:
    tokens: Ints  # [rows]
    slots: Ints  # [rows]
    page_of: Longs  # [bands, rows] byte offset, in the pool, of the page of each row
    offset_in_page: Ints  # [rows]
    tables: Ints  # [bands, pieces, most stretches]
    starts: Ints  # [pieces]
    counts: Ints  # [pieces]
    first_row: Ints  # [pieces]
    sampled: Longs  # [kept rows] indexes of the rows that are sampled or examined
    adapted: AdaptedRows | None = None  # the rows that have adapters; None: none has
    adapters: RowsOfAdapters = ()  # the same rows with their adapters

    @classmethod
    def of(cls, pieces: Sequence[Piece], limits: RowLimits) -> "Rows":
        counts = np.array([len(piece.tokens) for piece in pieces], np.int32)
        starts = np.array([piece.start for piece in pieces], np.int32)
        first_row = np.cumsum(counts, dtype=np.int32) - counts
        tokens = np.array([token for piece in pieces for token in piece.tokens], np.int64)
        tables = block_tables(pieces, limits, [0] * len(pieces))
        _check(pieces, tokens, limits)
        local = np.arange(len(tokens), dtype=np.int32) - np.repeat(first_row, counts)
        slots = np.repeat(starts, counts) + local
        owner = np.repeat(np.arange(len(pieces)), counts)
        pages = tables[:, owner, slots // limits.page_tokens]
        adapters = rows_of_adapters((piece.adapter, len(piece.tokens)) for piece in pieces)
        return cls(
            tokens=tokens.astype(np.int32),
            slots=slots,
            page_of=np.ascontiguousarray(pages, np.int64) * limits.page_bytes,
            offset_in_page=slots % limits.page_tokens,
            tables=tables,
            starts=starts,
            counts=counts,
            first_row=first_row,
            sampled=_sampled(pieces, first_row),
            adapted=_adapted(adapters),
            adapters=adapters,
        )


def block_tables(pieces: Sequence[Piece], limits: RowLimits, beyond: Sequence[int]) -> Ints:
    """The pages of each piece, for its rows and `beyond` slots behind them: [bands, pieces, most stretches]."""
    horizon, bands = limits.horizon, limits.bands
    stops = [piece.stop + more for piece, more in zip(pieces, beyond, strict=True)]
    needed = [-(-stop // limits.page_tokens) for stop in stops]
    tables = np.zeros((bands, len(pieces), max(needed)), np.int32)
    for row, (piece, stop, count) in enumerate(zip(pieces, stops, needed, strict=True)):
        if stop > limits.context or len(piece.pages) < count * bands:
            raise ValueError(
                f"piece {piece.key}: rows end at slot {stop}, beyond its {len(piece.pages) // bands} pages of "
                f"{limits.page_tokens} tokens or the context of {limits.context}; the scheduler must not plan it"
            )
        if bands == 1:
            tables[0, row, :count] = piece.pages[:count]
        else:
            tables[:, row, :count] = np.array(piece.pages[: count * bands], np.int32).reshape(count, bands).T
    _check_pages(tables if not limits.window else _read(tables, pieces, horizon), limits.pages)
    return tables


def _read(tables: Ints, pieces: Sequence[Piece], horizon: Horizon) -> Ints:
    """The pages of tables that kernels read; 0 stands for those behind every window."""
    read, firsts = tables.copy(), np.array([horizon.first_page(piece.start) for piece in pieces])
    read[: horizon.windowed, np.arange(tables.shape[2]) < firsts[:, None]] = 0
    return read


def _check_pages(read: Ints, pages: int) -> None:
    if read.min() < 0 or read.max() >= pages:
        raise ValueError(f"a block table names pages {read.min()}..{read.max()} of a pool of {pages}")


def _check(pieces: Sequence[Piece], tokens: NDArray[np.int64], limits: RowLimits) -> None:
    if tokens.min() >= 0 and tokens.max() < limits.vocab:
        return
    for piece in pieces:
        for token in piece.tokens:
            if not 0 <= token < limits.vocab:
                raise ValueError(f"piece {piece.key}: token {token} is outside the vocabulary of {limits.vocab}")


def _sampled(pieces: Sequence[Piece], first_row: Ints) -> Longs:
    rows: list[int] = []
    for piece, first in zip(pieces, first_row.tolist(), strict=True):
        end = first + len(piece.tokens)
        rows.extend(range(end - piece.kept, end))
    return np.array(rows, np.int64)


def _adapted(adapters: RowsOfAdapters) -> AdaptedRows | None:
    """The rows of adapters that change layers."""
    found = [(each.table, rows, each.expert_table) for each, rows in adapters if each.inside]
    return AdaptedRows(*zip(*found, strict=True)) if found else None
