"""The programs of paged attention: one walks a tile of query rows over its slots, one merges the partial results of
several programs.

`_walk` and `_merge` are the whole recipe: a program that calls them in ascending order gets the same bits. A
multiplication and an addition are fused only where the kernel calls `tl.fma`."""

import triton
import triton.language as tl

from baton_kernels.triton.fp8 import widen


@triton.jit
def _walk(
    acc,
    top,
    total,
    query,
    keys,
    scales,
    table,
    page_stride,
    scale,
    sees,
    known,
    begin,
    end,
    VALUES: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMITED: tl.constexpr,
):
    """Adds blocks [begin, end) of one split to the running result. The value of a key lies `VALUES` elements behind it.
    If LIMITED, slots from `known` on are never read and slots that a row must not see score -inf; else every row sees
    every slot."""
    d = tl.arange(0, DIMS)
    for block in range(begin, end, BLOCK):
        slots = tl.multiple_of(block, BLOCK) + tl.arange(0, BLOCK)
        there = slots < known
        if LIMITED:
            page = tl.load(table + slots // PAGE, mask=there, other=0)
        else:
            page = tl.load(table + slots // PAGE)
        base = page.to(tl.int64) * page_stride
        at = keys + (base + slots % PAGE * DIM)[:, None] + d[None, :]
        if LIMITED or DIM != DIMS:
            wanted = (there | (not LIMITED))[:, None] & (d < DIM)[None, :]
            k = tl.load(at, mask=wanted, other=0)
            v = tl.load(at + VALUES, mask=wanted, other=0)
        else:
            k = tl.load(at)
            v = tl.load(at + VALUES)
        if FP8:
            k = widen(k)
            v = widen(v)
            scale_at = scales + (base + PAGE * DIM) // 4 + slots % PAGE
            k_scale = tl.load(scale_at, mask=there, other=0)
            v_scale = tl.load(scale_at + VALUES // 4, mask=there, other=0)
        scores = tl.dot(query, tl.trans(k))
        if FP8:
            scores = scores * k_scale[None, :]
        if LIMITED:
            scores = tl.where(slots[None, :] <= sees[:, None], scores, float("-inf"))
        most = tl.maximum(top, tl.max(scores, 1) * scale)
        base_of_row = tl.where(most == float("-inf"), 0.0, most)
        p = tl.exp2(tl.fma(scores, scale, -base_of_row[:, None]))
        fade = tl.exp2(top - base_of_row)
        total = tl.fma(total, fade, tl.sum(p, 1))
        acc = acc * fade[:, None]
        if FP8:
            p = p * v_scale[None, :]
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
        top = most
    return acc, top, total


@triton.jit
def _merge(sum_acc, sum_top, sum_total, acc, top, total):
    """Merges the result of a split into the row's; a split that the row does not see changes nothing."""
    most = tl.maximum(sum_top, top)
    base = tl.where(most == float("-inf"), 0.0, most)
    old, new = tl.exp2(sum_top - base), tl.exp2(top - base)
    merged_acc = tl.fma(acc, new[:, None], sum_acc * old[:, None])
    merged_total = tl.fma(total, new, sum_total * old)
    unseen = top == float("-inf")
    return tl.where(unseen[:, None], sum_acc, merged_acc), most, tl.where(unseen, sum_total, merged_total)


@triton.jit(
    do_not_specialize=["sequences", "max_pages", "splits", "tiles"],
    # A caller may pass a part of these arrays, which begins at any address.
    do_not_specialize_on_alignment=["tables", "starts", "counts", "first_row", "partial_top", "partial_total"],
)
def attend_tile(
    q,
    kv,
    scales,
    tables,
    starts,
    counts,
    first_row,
    out,
    partial_acc,
    partial_top,
    partial_total,
    sequences,
    max_pages,
    splits,
    tiles,  # tiles of a sequence, where every split has programs of its own
    layer_offset,
    page_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    FP8: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    ACROSS: tl.constexpr,
    ONE_TILE: tl.constexpr,  # every sequence has one tile: saves registers, which decode lacks
    SEQUENCES: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(1)
    if ONE_TILE:
        sequence = tl.program_id(0)
        tile = 0
    elif ACROSS:
        sequence = tl.program_id(0) // tiles
        tile = tl.program_id(0) % tiles
    else:  # find the sequence of this tile; the last tiles see most slots and go first
        place = tl.num_programs(0) - 1 - tl.program_id(0)
        at = tl.arange(0, SEQUENCES)
        each = tl.cdiv(tl.load(counts + at, mask=at < sequences, other=0) * GROUP, ROWS)
        sequence = tl.sum((tl.cumsum(each, 0) <= place).to(tl.int32), 0)
        tile = place - tl.sum(tl.where(at < sequence, each, 0), 0)
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
    keys = kv + layer_offset + kv_head * TILE
    if FP8:
        scales += (layer_offset + kv_head * TILE) // 4
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
        seen_whole = begin
        if not ACROSS and DIM <= 128:  # a prompt's rows see most of their blocks whole; wider ones lack the registers
            seen_whole = tl.maximum(begin, tl.minimum(stop, (start + tile * ROWS // GROUP + 1) // BLOCK * BLOCK))
            acc, top, total = _walk(
                acc, top, total, query, keys, scales, table, page_stride, scale, sees, known, begin, seen_whole,
                KV_HEADS * TILE, DIM, DIMS, PAGE, FP8, BLOCK, False,
            )  # fmt: skip
        acc, top, total = _walk(
            acc, top, total, query, keys, scales, table, page_stride, scale, sees, known, seen_whole, stop,
            KV_HEADS * TILE, DIM, DIMS, PAGE, FP8, BLOCK, True,
        )  # fmt: skip
        if ACROSS:
            part = row * splits + split
            tl.store(partial_acc + part[:, None] * DIM + d[None, :], acc, mask=wanted)
            tl.store(partial_top + part, top, mask=token < count)
            tl.store(partial_total + part, total, mask=token < count)
        else:
            sum_acc, sum_top, sum_total = _merge(sum_acc, sum_top, sum_total, acc, top, total)
    if not ACROSS:
        # The program computes the indices of its rows again, from a tile number that the compiler cannot know to be the
        # same: indices kept over the loops would take registers that the sums need.
        again = tile + tl.load(counts + sequence, volatile=True) - count
        r = again * ROWS + tl.arange(0, ROWS)
        token = r // GROUP
        row = (first + token).to(tl.int64) * HEADS + kv_head * GROUP + r % GROUP
        wanted = (token < count)[:, None] & (d < DIM)[None, :]
        own = tl.where(token < count, sum_total, 1.0)
        tl.store(out + row[:, None] * DIM + d[None, :], (sum_acc / own[:, None]).to(tl.bfloat16), mask=wanted)


@triton.jit(
    do_not_specialize=["splits", "most_rows"],
    do_not_specialize_on_alignment=["starts", "counts", "first_row", "partial_top", "partial_total"],
)
def finish_rows(
    partial_acc,
    partial_top,
    partial_total,
    starts,
    counts,
    first_row,
    out,
    splits,
    most_rows,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUPS: tl.constexpr,
    FLIGHT: tl.constexpr,
):
    """Merges the partial results of a row's splits in ascending order. FLIGHT splits are loaded together, because a
    merge takes far less time than a load."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence = tl.program_id(0) // most_rows
    token = tl.program_id(0) % most_rows
    if token >= tl.load(counts + sequence):
        return
    g = tl.arange(0, GROUPS)
    d = tl.arange(0, DIMS)
    wanted = (g < GROUP)[:, None] & (d < DIM)[None, :]
    row = (tl.load(first_row + sequence) + token).to(tl.int64) * HEADS + tl.program_id(1) * GROUP + g
    sum_acc = tl.zeros([GROUPS, DIMS], tl.float32)
    sum_top = tl.full([GROUPS], float("-inf"), tl.float32)
    sum_total = tl.zeros([GROUPS], tl.float32)
    end = (tl.load(starts + sequence) + token) // SPLIT + 1
    seen = tl.minimum(end, splits)  # equals `end`, but the compiler cannot know it, so the branch delays no load
    for first in range(0, end, FLIGHT):
        parts = ()
        for ahead in tl.static_range(FLIGHT):
            split = tl.full([GROUPS], first + ahead, tl.int32)
            there = (g < GROUP) & (split < end)
            at = row * splits + split
            acc = tl.load(partial_acc + at[:, None] * DIM + d[None, :], mask=there[:, None] & (d < DIM), other=0.0)
            top = tl.load(partial_top + at, mask=there, other=float("-inf"))
            total = tl.load(partial_total + at, mask=there, other=0.0)
            parts += (acc, top, total)  # type: ignore[assignment]
        for ahead in tl.static_range(FLIGHT):
            if first + ahead < seen:
                acc, top, total = parts[3 * ahead], parts[3 * ahead + 1], parts[3 * ahead + 2]
                sum_acc, sum_top, sum_total = _merge(sum_acc, sum_top, sum_total, acc, top, total)
    own = tl.where(g < GROUP, sum_total, 1.0)
    tl.store(out + row[:, None] * DIM + d[None, :], (sum_acc / own[:, None]).to(tl.bfloat16), mask=wanted)
