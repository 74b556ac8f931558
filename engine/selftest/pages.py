"""The self-test's parts around pages: what a layer writes into them, attention over them, and how their bytes move.

Keys and values are read back slot by slot, in the order that the layout's name promises: other workers will read these
bytes. So the page size leaves no trace in the fingerprint."""

from collections.abc import Iterator

import numpy as np

import baton_kernels as kernels
from baton_kernels import KernelError
from engine.model.page_memory import layer_bytes
from engine.model.separate_kernels import normed_widths, write_rotated
from engine.model.weights import Bytes, LayerWeights, Weights
from engine.selftest.inputs import Array, each_window, slots_of, spread

_FRESH = 40  # rows of a prompt that begins: a block of 32 slots and a part
_TAIL, _DRAFTS = 6, 5  # rows of a chunk behind a long text, and of a step that verifies drafts
_CHUNK, _SEQUENCES, _FEW = 300, 40, 12  # rows of a long chunk, sequences of a large batch, rows of what they equal
_MOST_WORDS = 1 << 16  # 64-bit words in a span whose checksum is computed once more here


def attention(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """Norms, rotary and page writes of the first layer, then attention: decode, drafts, a chunk, a new prompt."""
    long, fresh = slots_of(weights), min(_FRESH, slots_of(weights))
    tables = block_tables(long, fresh, page_tokens=page_tokens)
    stride = layer_bytes(weights, page_tokens)
    pool = np.zeros((int(tables.max()) + 1) * stride, np.uint8)
    q = write_layer(weights, weights.layers[0], pool, tables, (long, fresh), page_tokens, stride, 0)
    yield q
    for table, slots in zip(tables, (long, fresh), strict=True):
        pages = pool.reshape(-1, stride)[table[: -(-slots // page_tokens)]]
        for stored in by_slot(weights, pages, page_tokens):
            yield stored[:slots]
    behind = [(0, min(count, long)) for count in (1, _DRAFTS, _TAIL)]
    lengths, ends = (long, fresh), (long, long + fresh)
    for group in ([behind[0]], behind[:2], [*behind, (1, fresh)]):
        starts = [lengths[sequence] - count for sequence, count in group]
        rows = np.concatenate([q[ends[sequence] - count : ends[sequence]] for sequence, count in group])
        own = tables[[sequence for sequence, _ in group]]
        for one in each_window(weights):
            yield attend(one, rows, pool, own, page_tokens, starts, [count for _, count in group])


def large_steps(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """Attention of a long chunk, and of one row each of many sequences: other cuts, and the same bits as few rows."""
    slots = min(_CHUNK, slots_of(weights))
    table = block_tables(slots, page_tokens=page_tokens)
    stride = layer_bytes(weights, page_tokens)
    pool = np.zeros((int(table.max()) + 1) * stride, np.uint8)
    q = write_layer(weights, weights.layers[0], pool, table, (slots,), page_tokens, stride, 0)
    some = list(range(0, slots, max(1, slots // _SEQUENCES)))
    for one in each_window(weights):
        few = np.concatenate(
            [
                attend(one, q[first : first + _FEW], pool, table, page_tokens, [first], [min(_FEW, slots - first)])
                for first in range(0, slots, _FEW)
            ]
        )
        chunk = attend(one, q, pool, table, page_tokens, [0], [slots])
        apart = attend(one, q[some], pool, np.repeat(table, len(some), 0), page_tokens, some, [1] * len(some))
        if chunk.tobytes() != few.tobytes() or apart.tobytes() != few[some].tobytes():
            raise KernelError("self-test failed: attention has other bits in a long chunk or beside other sequences")
        yield chunk


def attend(
    weights: Weights, rows: Array, pool: Bytes, tables: Array, page_tokens: int, starts: list[int], each: list[int]
) -> Array:
    """Attention of each[i] rows from slot starts[i] on, for every sequence i, over a pool of one layer: the first."""
    config, sinks = weights.config, weights.layers[0].sinks
    counts = np.array(each, np.int32)
    stride = layer_bytes(weights, page_tokens)
    out = np.empty((len(rows), config.q_width), np.float32)
    kernels.attention(
        weights.path,
        rows,
        pool,
        0,
        stride,
        np.ascontiguousarray(tables),
        np.array(starts, np.int32),
        counts,
        (np.cumsum(counts) - counts).astype(np.int32),
        config.heads,
        config.kv_heads,
        config.head_dim,
        page_tokens,
        config.scale,
        out,
        weights.kv,
        config.attention_cap,
        config.window(0),
        None if sinks is None else sinks[: config.heads],
        config.latent is not None,
    )
    return out


def block_tables(*slots: int, page_tokens: int) -> Array:
    """The pages of sequences of so many slots, none in its natural order: [sequences, most pages]."""
    needed = [-(-count // page_tokens) for count in slots]
    tables = np.zeros((len(slots), max(needed)), np.int32)
    first = 0
    for table, pages in zip(tables, needed, strict=True):
        table[:pages] = np.arange(first, first + pages)[::-1]
        first += pages
    return tables


def write_layer(
    weights: Weights,
    layer: LayerWeights,
    pool: Bytes,
    tables: Array,
    lengths: tuple[int, ...],
    page_tokens: int,
    stride: int,
    offset: int,
) -> Array:
    """Writes one layer's keys and values of whole sequences; returns their queries [rows, heads, dim]."""
    config = weights.config
    slots = np.concatenate([np.arange(count) for count in lengths]).astype(np.int32)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    page_of = tables[owner, slots // page_tokens].astype(np.int64) * stride + offset
    q = np.empty((len(slots), config.heads, config.head_dim), np.float32)
    qkv = spread(7, len(slots), config.qkv_width)
    norms = normed_widths(config, layer, qkv)
    write_rotated(weights, layer, norms, qkv, slots, page_of, slots % page_tokens, page_tokens, pool, q)
    return q


def by_slot(weights: Weights, pages: Bytes, page_tokens: int) -> Iterator[Array]:
    """One layer's bytes of pages [pages, bytes] as keys and values [slots, kv_heads, dim], and the scales of codes
    [slots, kv_heads, 2], by the layout's definition (`baton_kernels/paged.py`)."""
    heads, dim = weights.config.kv_heads, weights.config.head_dim
    size = page_tokens * (dim // 2 if weights.kv == "int4" else dim)  # bytes of a tile of codes
    parts = pages.reshape(-1, 2, heads, pages.shape[1] // (2 * heads))
    if weights.kv != kernels.OWN:
        scales = parts[..., size:].copy().view(np.uint16)
        yield scales.transpose(0, 3, 2, 1).reshape(-1, heads, 2)
        tiles = parts[..., :size]
        if weights.kv == "int4":
            yield from _half_bytes(np.stack([tiles & 15, tiles >> 4]), heads, dim, page_tokens)
            return
    else:
        tiles = parts.view(np.float32 if weights.path == "fp32" else np.uint16)
    if tiles.dtype == np.float32:
        k = tiles[:, 0].reshape(-1, heads, dim, page_tokens).transpose(0, 3, 1, 2)
        v = tiles[:, 1].reshape(-1, heads, page_tokens, dim).transpose(0, 2, 1, 3)
    else:
        k = tiles[:, 0].reshape(-1, heads, dim // 2, page_tokens, 2).transpose(0, 3, 1, 2, 4)
        v = tiles[:, 1].reshape(-1, heads, page_tokens // 2, dim, 2).transpose(0, 2, 4, 1, 3)
    yield from (k.reshape(-1, heads, dim), v.reshape(-1, heads, dim))


def _half_bytes(codes: Array, heads: int, dim: int, page_tokens: int) -> tuple[Array, Array]:
    """Keys and values of tiles [low and high bits, pages, keys and values, heads, bytes], by slot."""
    k = codes[:, :, 0].reshape(2, -1, heads, dim // 2, page_tokens).transpose(1, 4, 2, 3, 0)
    v = codes[:, :, 1].reshape(2, -1, heads, page_tokens // 2, dim // 2, 2).transpose(1, 3, 5, 2, 0, 4)
    return k.reshape(-1, heads, dim), v.reshape(-1, heads, dim)


def moved_pages(weights: Weights, page_tokens: int) -> None:
    """Copies of a page's bytes, between pools and inside one, and their checksums, which are computed once more here.
    KernelError when one is wrong: their lengths depend on the page size, so they are compared and not hashed."""
    layer = layer_bytes(weights, page_tokens)
    size = layer * max(1, min(weights.config.layers, _MOST_WORDS * 8 // layer))
    source = np.resize(spread(8, 4093).view(np.uint8), size)
    pool = np.zeros(2 * size, np.uint8)
    sums, key = np.zeros(2, np.uint64), np.array([0, layer // 8])
    halves = np.array([0, size // 16 * 8])
    to, from_ = pool.ctypes.data + halves, source.ctypes.data + halves
    kernels.scatter(to, from_, size // 16 * 8, key, sums)
    first, second = source[: size // 16 * 8], source[size // 16 * 8 :]
    kernels.copy_page(pool, 0, size, size)
    right = {
        "scatter": bool((pool[:size] == source).all())
        and sums.tolist() == [checksum(first, 0), checksum(second, layer // 8)],
        "checksum": kernels.checksum(source.ctypes.data, size, 0) == checksum(source, 0),
        "copy_page": bool((pool[size:] == source).all()),
    }
    if wrong := [name for name, is_right in right.items() if not is_right]:
        raise KernelError(f"self-test of pages of {page_tokens} tokens failed: {', '.join(wrong)}")


def checksum(data: Array, word: int) -> int:
    """The checksum of page bytes, by its definition (`baton_kernels/pages.py`)."""
    words = data.view(np.uint64)
    with np.errstate(over="ignore"):
        x = (np.arange(word, word + words.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        y = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        return int((words * ((y ^ (y >> np.uint64(29))) | np.uint64(1))).sum(dtype=np.uint64))
