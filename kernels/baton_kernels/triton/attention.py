"""Attention over paged keys and values, one recipe for decode, speculation and prefill alike.

A row sees its sequence's slots in blocks of 32 or 64 at absolute positions, ascending, with a running maximum; every 1,024 slots
(a split) the result so far is merged into the row's total. Decode gives each split its own program and merges afterwards,
prefill merges on its way: the same operations in the same order, so a row's bits depend neither on the chunking nor on the
batch nor on who did the splits. All query heads of one KV head and several tokens share a tile (GQA-packed)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from baton_kernels.library import KernelError
from baton_kernels.triton.launch import INTERPRETED, Launch, architecture, blocks, check, check_rank, power_of_2, run
from baton_kernels.triton.fp8 import widen
from baton_kernels.triton.layout import PageShape, read_page

SPLIT = 1024  # slots per merge


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes for one architecture. `block` is part of the recipe: equal in decode and prefill. Of the rest nothing may change
    a row's bits, so a row of scores must lie in the registers of equally many threads in both: see the gate."""

    rows: int  # query rows of a tile
    block: int  # slots per step of the running maximum
    warps: int
    stages: int


INSTRUCTIONS = {80: ("mma.sync", "cp.async"), 90: ("wgmma", "cp.async"), 100: ("tcgen05.mma", "cp.async")}
_DECODE = {80: Config(64, 32, 8, 4), 90: Config(64, 64, 4, 3), 100: Config(64, 64, 8, 3)}
_PREFILL = {80: Config(64, 32, 8, 2), 90: Config(128, 64, 8, 2), 100: Config(64, 64, 8, 2)}
_DECODE_FP8 = {80: Config(64, 32, 8, 4), 90: Config(64, 32, 4, 4), 100: Config(64, 32, 8, 4)}
_PREFILL_FP8 = {80: Config(64, 32, 8, 2), 90: Config(128, 32, 8, 2), 100: Config(64, 32, 8, 2)}
_WIDE = {80: Config(32, 32, 8, 2), 90: Config(64, 32, 8, 2), 100: Config(64, 32, 8, 2)}  # heads beyond 128


def config_for(arch: int, shape: PageShape, *, decode: bool) -> Config:
    if shape.dim > 128:
        return _WIDE[arch]
    if shape.fp8:
        return (_DECODE_FP8 if decode else _PREFILL_FP8)[arch]
    return (_DECODE if decode else _PREFILL)[arch]


def attend(
    q: torch.Tensor,  # bf16 [rows, heads, dim], rotated
    pool: torch.Tensor,  # uint8
    shape: PageShape,
    layer: int,
    tables: torch.Tensor,  # int32 [sequences, max_pages]
    starts: torch.Tensor,  # int32 [sequences], slot of each one's first row
    counts: torch.Tensor,  # int32 [sequences], rows; 0 for a place of the batch that is empty
    first_row: torch.Tensor,  # int32 [sequences], where they lie in q
    *,
    scale: float,
    out: torch.Tensor,  # bf16 [rows, heads * dim]
    most_rows: int,  # no sequence has more
    partials: torch.Tensor | None = None,  # float32, `partial_floats(...)` of them: every split gets a program of its own
) -> None:
    """Row i of a sequence sees its slots 0 .. starts + i, which must have been written. Other rows of out stay.

    With `partials` every 1,024 slots of the longest sequence that the tables can hold get a program: for steps of few
    rows. Without, one program walks all slots of a tile of rows: for prefill. The bits are the same."""
    plan = launches(
        architecture(q), q, pool, shape, layer, tables, starts, counts, first_row, scale, out, most_rows, partials
    )
    run(list(plan))


def partial_floats(rows: int, heads: int, dim: int, max_pages: int, page_tokens: int) -> int:
    """Size of `partials` for block tables of so many pages."""
    return rows * heads * blocks(max_pages * page_tokens, SPLIT) * (dim + 2)


def reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    shape: PageShape,
    layer: int,
    tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    first_row: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """[rows, heads * dim] in float64; rows of no sequence are NaN."""
    out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), torch.nan, dtype=torch.float64)
    group = q.shape[1] // shape.kv_heads
    for table, start, count, first in zip(tables.cpu(), starts.tolist(), counts.tolist(), first_row.tolist(), strict=True):
        if count == 0:
            continue
        pages = [read_page(pool, shape, layer, int(p)) for p in table[: blocks(start + count, shape.page_tokens)]]
        k, v = (torch.cat(half)[: start + count].double().repeat_interleave(group, 1).transpose(0, 1) for half in zip(*pages, strict=True))
        queries = q[first : first + count].cpu().double().transpose(0, 1)
        seen = torch.arange(start + count)[None] <= start + torch.arange(count)[:, None]
        weights = (queries @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        out[first : first + count] = (weights @ v).transpose(0, 1).flatten(1)
    return out


@triton.jit
def _walk(
    acc, top, total, query, kv, scales, table, k_tile, v_tile, page_stride, scale, sees, known, begin, end,
    DIM: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Blocks [begin, end) of one split. What lies behind `known` is never read, what a row must not see counts as -inf."""
    d = tl.arange(0, DIMS)
    for block in range(begin, end, BLOCK):
        slots = block + tl.arange(0, BLOCK)
        there = slots < known
        base = tl.load(table + slots // PAGE, mask=there, other=0).to(tl.int64) * page_stride
        at = base[:, None] + (slots % PAGE * DIM)[:, None] + d[None, :]
        if DIM == DIMS:
            wanted = there[:, None]
        else:
            wanted = there[:, None] & (d < DIM)[None, :]
        k = tl.load(kv + k_tile + at, mask=wanted, other=0)
        v = tl.load(kv + v_tile + at, mask=wanted, other=0)
        if FP8:
            k = widen(k)
            v = widen(v)
            scale_at = (base + PAGE * DIM) // 4 + slots % PAGE
            k_scale = tl.load(scales + k_tile // 4 + scale_at, mask=there, other=0)
            v_scale = tl.load(scales + v_tile // 4 + scale_at, mask=there, other=0)
        if UPCAST:
            scores = tl.dot(query.to(tl.float32), tl.trans(k).to(tl.float32))
        else:
            scores = tl.dot(query, tl.trans(k))
        if FP8:
            scores = scores * k_scale[None, :]
        scores = tl.where(slots[None, :] <= sees[:, None], scores, float("-inf"))
        most = tl.maximum(top, tl.max(scores, 1) * scale)
        base_of_row = tl.where(most == float("-inf"), 0.0, most)
        p = tl.exp2(tl.fma(scores, scale, -base_of_row[:, None]))
        fade = tl.exp2(top - base_of_row)
        total = tl.fma(total, fade, tl.sum(p, 1))
        acc = acc * fade[:, None]
        if FP8:
            p = p * v_scale[None, :]
        if UPCAST:
            acc = tl.dot(p.to(tl.bfloat16).to(tl.float32), v.to(tl.float32), acc)
        else:
            acc = tl.dot(p.to(tl.bfloat16), v, acc)
        top = most
    return acc, top, total


@triton.jit
def _merge(sum_acc, sum_top, sum_total, acc, top, total):
    """A split's result into the row's; a split that the row does not see changes nothing."""
    most = tl.maximum(sum_top, top)
    base = tl.where(most == float("-inf"), 0.0, most)
    old, new = tl.exp2(sum_top - base), tl.exp2(top - base)
    merged_acc = tl.fma(acc, new[:, None], sum_acc * old[:, None])
    merged_total = tl.fma(total, new, sum_total * old)
    unseen = top == float("-inf")
    return tl.where(unseen[:, None], sum_acc, merged_acc), most, tl.where(unseen, sum_total, merged_total)


@triton.jit(do_not_specialize=["sequences", "max_pages", "splits"])
def _attend(
    q, kv, scales, tables, starts, counts, first_row, out, partial_acc, partial_top, partial_total,
    sequences, max_pages, splits, layer_offset, page_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    ACROSS: tl.constexpr, TILES: tl.constexpr, SEQUENCES: tl.constexpr, UPCAST: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(1)
    if ACROSS:
        sequence = tl.program_id(0) // TILES
        tile = tl.program_id(0) % TILES
    else:  # find whose tile this is; the last tiles see most slots and go first
        place = tl.num_programs(0) - 1 - tl.program_id(0)
        at = tl.arange(0, SEQUENCES)
        tiles = tl.cdiv(tl.load(counts + at, mask=at < sequences, other=0) * GROUP, ROWS)
        sequence = tl.sum((tl.cumsum(tiles, 0) <= place).to(tl.int32), 0)
        tile = place - tl.sum(tl.where(at < sequence, tiles, 0), 0)
        if sequence >= sequences:
            return
    count = tl.load(counts + sequence)
    start = tl.load(starts + sequence)
    first = tl.load(first_row + sequence)
    if tile * ROWS >= count * GROUP:
        return
    r = tile * ROWS + tl.arange(0, ROWS)
    token = r // GROUP
    head = kv_head * GROUP + r % GROUP
    d = tl.arange(0, DIMS)
    wanted = (token < count)[:, None] & (d < DIM)[None, :]
    row = (first + token).to(tl.int64) * HEADS + head
    sees = start + token
    known = start + count
    end = tl.minimum(known, start + (tile * ROWS + ROWS - 1) // GROUP + 1)
    table = tables + sequence.to(tl.int64) * max_pages
    k_tile = layer_offset + kv_head * TILE
    v_tile = layer_offset + (KV_HEADS + kv_head) * TILE
    if ACROSS:
        first_split = tl.program_id(2)
        last_split = first_split + 1
        if first_split * SPLIT >= end:
            return
    else:
        first_split = 0
        last_split = tl.cdiv(end, SPLIT)
    query = tl.load(q + row[:, None] * DIM + d[None, :], mask=wanted, other=0)
    sum_acc = tl.zeros([ROWS, DIMS], tl.float32)
    sum_top = tl.full([ROWS], float("-inf"), tl.float32)
    sum_total = tl.zeros([ROWS], tl.float32)
    for split in range(first_split, last_split):
        begin = split * SPLIT
        stop = tl.minimum(begin + SPLIT, end)
        acc = tl.zeros([ROWS, DIMS], tl.float32)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc, top, total = _walk(
            acc, top, total, query, kv, scales, table, k_tile, v_tile, page_stride, scale, sees, known, begin, stop,
            DIM, DIMS, PAGE, FP8, BLOCK, UPCAST,
        )
        if ACROSS:
            part = row * splits + split
            tl.store(partial_acc + part[:, None] * DIM + d[None, :], acc, mask=wanted)
            tl.store(partial_top + part, top, mask=token < count)
            tl.store(partial_total + part, total, mask=token < count)
        else:
            sum_acc, sum_top, sum_total = _merge(sum_acc, sum_top, sum_total, acc, top, total)
    if not ACROSS:
        own = tl.where(token < count, sum_total, 1.0)
        tl.store(out + row[:, None] * DIM + d[None, :], (sum_acc / own[:, None]).to(tl.bfloat16), mask=wanted)


@triton.jit(do_not_specialize=["splits"])
def _finish(
    partial_acc, partial_top, partial_total, starts, counts, first_row, out, splits,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, SPLIT: tl.constexpr,
    MOST_ROWS: tl.constexpr, GROUPS: tl.constexpr,
):
    """Merges what the programs of a row's splits have left, in ascending order."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence = tl.program_id(0) // MOST_ROWS
    token = tl.program_id(0) % MOST_ROWS
    if token >= tl.load(counts + sequence):
        return
    g = tl.arange(0, GROUPS)
    d = tl.arange(0, DIMS)
    wanted = (g < GROUP)[:, None] & (d < DIM)[None, :]
    row = (tl.load(first_row + sequence) + token).to(tl.int64) * HEADS + tl.program_id(1) * GROUP + g
    sum_acc = tl.zeros([GROUPS, DIMS], tl.float32)
    sum_top = tl.full([GROUPS], float("-inf"), tl.float32)
    sum_total = tl.zeros([GROUPS], tl.float32)
    for split in range(0, (tl.load(starts + sequence) + token) // SPLIT + 1):
        at = row * splits + split
        acc = tl.load(partial_acc + at[:, None] * DIM + d[None, :], mask=wanted, other=0.0)
        top = tl.load(partial_top + at, mask=g < GROUP, other=float("-inf"))
        total = tl.load(partial_total + at, mask=g < GROUP, other=0.0)
        if split > 0:
            sum_acc, sum_top, sum_total = _merge(sum_acc, sum_top, sum_total, acc, top, total)
        else:
            sum_acc, sum_top, sum_total = acc, top, total
    own = tl.where(g < GROUP, sum_total, 1.0)
    tl.store(out + row[:, None] * DIM + d[None, :], (sum_acc / own[:, None]).to(tl.bfloat16), mask=wanted)


def launches(
    arch: int,
    q: torch.Tensor,
    pool: torch.Tensor,
    shape: PageShape,
    layer: int,
    tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    first_row: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    most_rows: int,
    partials: torch.Tensor | None,
) -> Iterator[Launch]:
    rows, heads, dim = check_rank("q", q, 3)
    sequences, max_pages = check_rank("tables", tables, 2)
    if dim != shape.dim or heads % shape.kv_heads:
        raise KernelError(f"q: {heads} heads of {dim} do not fit pages of {shape.kv_heads} heads of {shape.dim}")
    if scale <= 0 or not 1 <= most_rows:
        raise KernelError(f"scale, most_rows: {scale} and {most_rows} must be positive")
    shape.check_pool(pool)
    shape.check_layer(layer)
    check("q", q, torch.bfloat16, (rows, heads, dim))
    check("tables", tables, torch.int32, (sequences, max_pages))
    for name, tensor in (("starts", starts), ("counts", counts), ("first_row", first_row)):
        check(name, tensor, torch.int32, (sequences,))
    check("out", out, torch.bfloat16, (rows, heads * dim))
    group, element = heads // shape.kv_heads, 1 if shape.fp8 else 2
    across, splits, pieces = partials is not None, 1, [out] * 3
    if partials is not None:
        splits = blocks(max_pages * shape.page_tokens, SPLIT)
        places = rows * heads * splits
        check("partials", partials, torch.float32, (partials.numel(),))
        if partials.numel() < places * (dim + 2):
            raise KernelError(f"partials: {partials.numel()} floats, needs {places * (dim + 2)}")
        pieces = [partials[: places * dim], partials[places * dim :], partials[places * (dim + 1) :]]
    config = config_for(arch, shape, decode=across)
    tiles = blocks(most_rows * group, config.rows)
    sizes: dict[str, Any] = {
        "HEADS": heads, "KV_HEADS": shape.kv_heads, "DIM": dim, "DIMS": power_of_2(dim, 16), "SPLIT": SPLIT,
    }  # fmt: skip
    lengths = {"starts": starts, "counts": counts, "first_row": first_row}
    parts = dict(zip(("partial_acc", "partial_top", "partial_total"), pieces, strict=True))
    if rows == 0 or sequences == 0:
        return
    yield Launch(
        name=f"attend {'decode' if across else 'prefill'} {shape.name} heads {heads}/{shape.kv_heads}",
        kernel=_attend,
        grid=(sequences * tiles, shape.kv_heads, splits)
        if across
        else (min(blocks(rows * group, config.rows) + sequences, sequences * tiles), shape.kv_heads, 1),
        arguments={
            "q": q, "kv": pool if shape.fp8 else pool.view(torch.bfloat16), "scales": pool.view(torch.float32), "tables": tables,
            **lengths, "out": out, **parts, "sequences": sequences, "max_pages": max_pages, "splits": splits,
            "layer_offset": layer * shape.layer_bytes // element, "page_stride": shape.page_bytes // element,
            "scale": scale * 1.4426950408889634,
        },
        constants={
            **sizes, "PAGE": shape.page_tokens, "TILE": shape.tile_bytes // element, "FP8": shape.fp8, "ROWS": config.rows,
            "BLOCK": config.block, "ACROSS": across, "TILES": tiles if across else 0,
            "SEQUENCES": 1 if across else power_of_2(sequences), "UPCAST": INTERPRETED,
        },
        warps=config.warps,
        stages=config.stages,
        instructions=INSTRUCTIONS[arch],
        family=f"attention over {shape.name}",
    )  # fmt: skip
    if across:
        yield Launch(
            name=f"attend finish {shape.name} heads {heads}/{shape.kv_heads}",
            kernel=_finish,
            grid=(sequences * most_rows, shape.kv_heads, 1),
            arguments={**parts, **lengths, "out": out, "splits": splits},
            constants={**sizes, "MOST_ROWS": most_rows, "GROUPS": power_of_2(group)},
        )
