"""Attention over paged keys and values, one recipe for decode, speculation and prefill alike.

A row sees its sequence's slots in blocks of 32 or 64 at absolute positions, ascending, with a running maximum; every
1,024 slots (a split) the result so far is merged into the row's total. Decode gives each split its own program and
merges afterwards, prefill merges as it walks: the same operations in the same order, so a row's bits depend neither on
the chunking nor on the batch nor on which program did the splits. All query heads of one KV head and several tokens
share a tile (GQA-packed)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from baton_kernels.library import KernelError
from baton_kernels.triton.attention_body import attend_tile, finish_rows
from baton_kernels.triton.launch import Launch, architecture, blocks, check, check_rank, power_of_2, run
from baton_kernels.triton.layout import GpuPageShape, read_page

SPLIT = 1024  # slots per merge
_LEAST_SEQUENCES = 64  # least SEQUENCES of prefill's program: one compiled program serves every smaller batch
_FLIGHT_FLOATS = 8192  # 64 in each thread of four warps


@dataclass(frozen=True, slots=True)
class AttentionShape:
    heads: int
    kv_heads: int
    dim: int
    page_tokens: int
    kv_type: str
    starts: tuple[int, ...]
    counts: tuple[int, ...]


SHAPES = (
    AttentionShape(4, 2, 64, 16, "bf16", (0, 70, 15), (5, 3, 1)),
    AttentionShape(6, 1, 32, 32, "fp8", (30, 0, 1040), (2, 0, 3)),  # an empty sequence, more than one split
    AttentionShape(7, 1, 16, 64, "bf16", (1020, 3), (9, 20)),  # rows on both sides of a split, several tiles
    AttentionShape(2, 2, 96, 16, "bf16", (0, 63), (70, 2)),
    AttentionShape(4, 1, 128, 16, "fp8", (1279,), (2,)),
    AttentionShape(3, 1, 256, 16, "bf16", (31, 5), (1, 6)),
)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Sizes for one architecture. `block` is part of the recipe and equal in decode and prefill. The other sizes may
    not change a row's bits, so a row of scores must lie in the registers of equally many threads in both; the gate
    (`tests/gpu_gate/aot.py`) checks it."""

    rows: int  # query rows of a tile
    block: int  # slots per step of the running maximum
    warps: int
    stages: int


INSTRUCTIONS = {80: ("mma.sync", "cp.async"), 90: ("wgmma", "cp.async"), 100: ("tcgen05.mma", "cp.async")}
# Five stages, because the load of a block first needs the load of its page's number and so takes two stages: the
# program computes one block while the next two are being loaded.
_DECODE = {
    80: AttentionConfig(64, 32, 8, 5),
    90: AttentionConfig(64, 64, 4, 5),
    100: AttentionConfig(64, 64, 8, 5),
}
_PREFILL = {
    80: AttentionConfig(64, 32, 8, 5),
    90: AttentionConfig(128, 64, 8, 5),
    100: AttentionConfig(64, 64, 8, 5),
}
_DECODE_FP8 = {
    80: AttentionConfig(32, 32, 8, 5),
    90: AttentionConfig(64, 32, 4, 5),
    100: AttentionConfig(64, 32, 8, 5),
}
_PREFILL_FP8 = {
    80: AttentionConfig(32, 32, 8, 5),
    90: AttentionConfig(128, 32, 8, 5),
    100: AttentionConfig(64, 32, 8, 5),
}
_WIDE = {80: AttentionConfig(32, 32, 8, 5), 90: AttentionConfig(64, 32, 8, 5)}  # heads beyond 128


def config_for(arch: int, shape: GpuPageShape, *, decode: bool) -> AttentionConfig:
    if shape.dim > 128:
        if arch not in _WIDE:
            raise KernelError(f"dim: heads of {shape.dim} do not fit into the registers of sm_{arch} (128 do)")
        return _WIDE[arch]
    if shape.fp8:
        return (_DECODE_FP8 if decode else _PREFILL_FP8)[arch]
    return (_DECODE if decode else _PREFILL)[arch]


def attend(
    q: torch.Tensor,  # bf16 [rows, heads, dim], rotated
    pool: torch.Tensor,  # uint8
    shape: GpuPageShape,
    layer: int,
    tables: torch.Tensor,  # int32 [sequences, max_pages]
    starts: torch.Tensor,  # int32 [sequences], slot of each sequence's first row
    counts: torch.Tensor,  # int32 [sequences], rows of each sequence; 0 for an empty place in the batch
    first_row: torch.Tensor,  # int32 [sequences], index in q of each sequence's first row
    *,
    scale: float,
    out: torch.Tensor,  # bf16 [rows, heads * dim]
    most_rows: int,  # most rows of a sequence
    partials: torch.Tensor
    | None = None,  # float32, `partial_floats(...)` of them: every split gets a program of its own
) -> None:
    """Row i of a sequence sees its slots 0 .. starts + i, which must have been written. Rows of `out` that belong to no
    sequence keep their content.

    With `partials` every 1,024 slots of the longest sequence that the tables can hold get a program: for steps of few
    rows. Without, one program walks all slots of a tile of rows: for prefill. The bits are the same."""
    plan = launches(
        architecture(q), q, pool, shape, layer, tables, starts, counts, first_row, scale, out, most_rows, partials
    )
    run(list(plan))


def partial_floats(rows: int, heads: int, dim: int, max_pages: int, page_tokens: int) -> int:
    """Size of `partials` for block tables of so many pages."""
    return rows * heads * blocks(max_pages * page_tokens, SPLIT) * (dim + 2)


def flight(group: int, dim: int) -> int:
    """Number of splits that are loaded together before the first of them is merged; registers limit it."""
    return max(1, min(8, _FLIGHT_FLOATS // (power_of_2(group) * power_of_2(dim, 16))))


def reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    shape: GpuPageShape,
    layer: int,
    tables: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    first_row: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """[rows, heads * dim] in float64; rows that belong to no sequence are NaN."""
    out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), torch.nan, dtype=torch.float64)
    group = q.shape[1] // shape.kv_heads
    for table, start, count, first in zip(
        tables.cpu(), starts.tolist(), counts.tolist(), first_row.tolist(), strict=True
    ):
        if count == 0:
            continue
        pages = [read_page(pool, shape, layer, int(p)) for p in table[: blocks(start + count, shape.page_tokens)]]
        k, v = (
            torch.cat(half)[: start + count].double().repeat_interleave(group, 1).transpose(0, 1)
            for half in zip(*pages, strict=True)
        )
        queries = q[first : first + count].cpu().double().transpose(0, 1)
        seen = torch.arange(start + count)[None] <= start + torch.arange(count)[:, None]
        weights = (queries @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        out[first : first + count] = (weights @ v).transpose(0, 1).flatten(1)
    return out


def launches(
    arch: int,
    q: torch.Tensor,
    pool: torch.Tensor,
    shape: GpuPageShape,
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
        kernel=attend_tile,
        grid=(sequences * tiles, shape.kv_heads, splits)
        if across
        else (min(blocks(rows * group, config.rows) + sequences, sequences * tiles), shape.kv_heads, 1),
        arguments={
            "q": q, "kv": pool if shape.fp8 else pool.view(torch.bfloat16), "scales": pool.view(torch.float32),
            "tables": tables,
            **lengths, "out": out, **parts, "sequences": sequences, "max_pages": max_pages, "splits": splits,
            "tiles": tiles,
            "layer_offset": shape.layer_byte(layer) // element, "page_stride": shape.page_bytes // element,
            "scale": scale * 1.4426950408889634,
        },
        constants={
            **sizes, "PAGE": shape.page_tokens, "TILE": shape.tile_bytes // element, "FP8": shape.fp8,
            "ROWS": config.rows,
            "BLOCK": config.block, "ACROSS": across, "ONE_TILE": across and tiles == 1,
            "SEQUENCES": 1 if across else power_of_2(sequences, _LEAST_SEQUENCES),
        },
        warps=config.warps,
        stages=config.stages,
        registers=255,  # with fewer registers the compiler keeps some sums in memory
        instructions=INSTRUCTIONS[arch],
        family=f"attention over {shape.name}",
    )  # fmt: skip
    if across:
        yield Launch(
            name=f"attend finish {shape.name} heads {heads}/{shape.kv_heads}",
            kernel=finish_rows,
            grid=(sequences * most_rows, shape.kv_heads, 1),
            arguments={**parts, **lengths, "out": out, "splits": splits, "most_rows": most_rows},
            constants={**sizes, "GROUPS": power_of_2(group), "FLIGHT": flight(group, dim)},
        )
