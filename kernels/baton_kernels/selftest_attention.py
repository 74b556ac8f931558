"""The part of the fixed self-test (`selftest.py`) that computes attention over pages: chunks, long texts, windows and
sinks."""

from collections.abc import Iterator

import numpy as np

from baton_kernels import paged as kv
from baton_kernels.arrays import PATHS, Array
from baton_kernels.fixed import numbers
from baton_kernels.rows import rmsnorm

_HEADS, _KV_HEADS, _DIM, _PAGE, _POSITIONS = 6, 2, 32, 32, 96
_STORED, _CHUNK = 41, 700  # pages that long texts repeat, rows of a long chunk
_WINDOWS = (5, 33, 600)  # slots that a row sees
_LENGTHS = (32, 33, 511, 512, 513, 544, 601, 777, 1024, 1025, 1999, 4193)


def attention(
    path: str,
    pages_hold: str = kv.OWN,
    *,
    cap: float = 0.0,
    rotated: bool = True,
    sunk: Array | None = None,
    stretches: bool = False,
) -> list[Array]:
    """Chunks of two sequences: queries, pages, outputs and their norms. `sunk`: the heads' sinks."""
    layer = kv.layer_bytes(path, _PAGE, _KV_HEADS, _DIM, pages_hold)
    pool = np.zeros(layer * 4, np.uint8)
    tables = np.array([[2, 0, 3], [1, 0, 0]], np.int32)
    starts, counts, first = np.array([0, 0], np.int32), np.array([75, 5], np.int32), np.array([0, 75], np.int32)
    slots = np.concatenate([np.arange(75), np.arange(5)]).astype(np.int32)
    page_of = tables[np.repeat([0, 1], counts), slots // _PAGE].astype(np.int64) * layer
    angles = numbers(6, _POSITIONS, _DIM // 2)
    cos, sin = (np.sqrt(np.float32(1.1) - angles * angles * np.float32(0.25)), angles) if rotated else (None, None)
    q, out = np.empty((80, _HEADS, _DIM), np.float32), np.empty((80, _HEADS * _DIM), np.float32)
    qkv, norm = numbers(7, 80, (_HEADS + 2 * _KV_HEADS) * _DIM), numbers(8, _DIM)
    shape = _HEADS, _KV_HEADS, _DIM
    kv.rotate_write(
        path, qkv, *shape, cos, sin, slots, page_of, slots % _PAGE, _PAGE, pool, q, norm, norm, kv=pages_hold
    )
    rows = (tables, starts, counts, first)
    kv.attention(path, q, pool, 0, layer, *rows, *shape, _PAGE, 0.7, out, pages_hold, cap, 0, sunk, stretches=stretches)
    normed = np.empty_like(out)
    rmsnorm(out, numbers(9, _HEADS * _DIM), 1e-6, normed)
    return [q, pool, out, normed]


def windows() -> Iterator[Array]:
    """Attention that sees the last slots only: windows within a block, of blocks and of segments, on all pages."""
    for path in PATHS:
        for coded in kv.KV:
            for window in _WINDOWS:
                yield from lengths(path, coded, window=window)


def sinks() -> Iterator[Array]:
    """Attention whose heads have sinks below, among and above their scores, also with windows and caps, on all
    pages."""
    sunk = numbers(60, _HEADS) * np.float32(8)
    for path in PATHS:
        for coded in kv.KV:
            yield from attention(path, coded, sunk=sunk)
            yield from attention(path, coded, cap=2.5, sunk=sunk)
            for window in (0, *_WINDOWS):
                yield from lengths(path, coded, window=window, sunk=np.array([1.5], np.float32))


def lengths(path: str, pages_hold: str = kv.OWN, *, window: int = 0, sunk: Array | None = None) -> list[Array]:
    """Single rows of texts up to thousands of slots, and a long chunk. The texts repeat few pages, without a period."""
    layer, slots = kv.layer_bytes(path, _PAGE, 1, _DIM, pages_hold), np.arange(_STORED * _PAGE, dtype=np.int32)
    pool, angles = np.zeros(layer * _STORED, np.uint8), numbers(12, len(slots), _DIM // 2)
    cos = np.sqrt(np.float32(1.1) - angles * angles * np.float32(0.25))
    q, page_of = np.empty((len(slots), 1, _DIM), np.float32), (slots // _PAGE).astype(np.int64) * layer
    qkv = numbers(13, len(slots), 3 * _DIM)
    kv.rotate_write(path, qkv, 1, 1, _DIM, cos, angles, slots, page_of, slots % _PAGE, _PAGE, pool, q, kv=pages_hold)
    order = np.arange(-(-_LENGTHS[-1] // _PAGE))
    table, results = (order * order * 7 + order * 3) % _STORED, []
    ends = np.array(_LENGTHS, np.int32)
    for starts, counts in ((ends - 1, np.ones_like(ends)), (np.zeros(1, np.int32), np.full(1, _CHUNK, np.int32))):
        rows, tables = int(counts.sum()), np.repeat(table[None].astype(np.int32), len(starts), 0)
        out, first = np.empty((rows, _DIM), np.float32), (np.cumsum(counts) - counts).astype(np.int32)
        of_rows = (tables, starts, counts, first)
        kv.attention(
            path, q[:rows], pool, 0, layer, *of_rows, 1, 1, _DIM, _PAGE, 0.7, out, pages_hold, 0.0, window, sunk
        )
        results.append(out)
    return results
