"""Rotary embedding of queries and keys (after their norms, if the model has them) and the write of keys and values
into pages.

One program computes one head of one row. A negative slot marks an empty place in the batch, for which nothing is
written."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.library import KernelError
from baton_kernels.triton.fp8 import narrow
from baton_kernels.triton.launch import Launch, architecture, check, check_rank, power_of_2, run
from baton_kernels.triton.layout import FP8_LARGEST, GpuPageShape

SHAPES = (  # heads, kv_heads, dim, page_tokens, kv_type, norms
    (4, 2, 64, 16, "bf16", False),
    (3, 1, 32, 32, "fp8", True),
    (2, 2, 96, 16, "fp8", False),
    (2, 1, 128, 64, "bf16", True),
)


def rotate_write(
    qkv: torch.Tensor,  # float32 [rows, (heads + 2 * kv_heads) * dim]
    cos: torch.Tensor,  # float32 [positions, dim / 2]
    sin: torch.Tensor,
    slots: torch.Tensor,  # int32 [rows], slot and position of each row; negative for an empty place in the batch
    sequence_of: torch.Tensor,  # int32 [rows], index into `tables` of each row's block table
    tables: torch.Tensor,  # int32 [sequences, max_pages]
    pool: torch.Tensor,  # uint8
    shape: GpuPageShape,
    layer: int,
    *,
    q_out: torch.Tensor,  # bf16 [rows, heads, dim]
    q_norm: torch.Tensor | None = None,  # float32 [dim]
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Half-split convention: element i pairs with i + dim / 2."""
    architecture(qkv)
    run(list(launches(qkv, cos, sin, slots, sequence_of, tables, pool, shape, layer, q_out, q_norm, k_norm, eps)))


def reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """x [rows, heads, dim], cos and sin [rows, dim / 2] -> float64."""
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * norm.double()
    a, b = x.chunk(2, dim=-1)
    c, s = cos[:, None].double(), sin[:, None].double()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


@triton.jit(do_not_specialize=["max_pages"])
def _rotate_write(
    qkv,
    cos,
    sin,
    slots,
    sequence_of,
    tables,
    pool,
    q_out,
    q_norm,
    k_norm,
    eps,
    max_pages,
    layer_offset,
    page_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALVES: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    FP8: tl.constexpr,
    NORMS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    at = tl.arange(0, HALVES)
    inside = at < HALF
    x = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * DIM + at
    a = tl.load(x, mask=inside, other=0.0)
    b = tl.load(x + HALF, mask=inside, other=0.0)
    if head < HEADS + KV_HEADS:
        if NORMS:
            factor = 1.0 / tl.sqrt_rn((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / DIM + eps)
            norm = k_norm
            if head < HEADS:
                norm = q_norm
            a = a * factor * tl.load(norm + at, mask=inside, other=0.0)
            b = b * factor * tl.load(norm + HALF + at, mask=inside, other=0.0)
        c = tl.load(cos + slot.to(tl.int64) * HALF + at, mask=inside, other=0.0)
        s = tl.load(sin + slot.to(tl.int64) * HALF + at, mask=inside, other=0.0)
        a_turned = tl.fma(a, c, -(b * s))
        b = tl.fma(b, c, a * s)
        a = a_turned
    if head < HEADS:
        query = q_out + (row * HEADS + head) * DIM + at
        tl.store(query, a.to(tl.bfloat16), mask=inside)
        tl.store(query + HALF, b.to(tl.bfloat16), mask=inside)
    else:
        table = tables + tl.load(sequence_of + row).to(tl.int64) * max_pages
        page = tl.load(table + slot // PAGE).to(tl.int64)
        tile = pool + page * page_stride + layer_offset + (head - HEADS) * TILE  # keys, then values: one row of tiles
        to = slot % PAGE * DIM + at
        if FP8:
            largest = tl.maximum(tl.max(tl.abs(a), 0), tl.max(tl.abs(b), 0))
            scale = tl.where(largest > 0, tl.div_rn(largest, LARGEST), 1.0)
            tl.store(tile + to, narrow(tl.minimum(tl.maximum(tl.div_rn(a, scale), -LARGEST), LARGEST)), mask=inside)
            tl.store(
                tile + to + HALF, narrow(tl.minimum(tl.maximum(tl.div_rn(b, scale), -LARGEST), LARGEST)), mask=inside
            )
            tl.store((tile + PAGE * DIM).to(tl.pointer_type(tl.float32)) + slot % PAGE, scale)
        else:
            tl.store(tile.to(tl.pointer_type(tl.bfloat16)) + to, a.to(tl.bfloat16), mask=inside)
            tl.store(tile.to(tl.pointer_type(tl.bfloat16)) + to + HALF, b.to(tl.bfloat16), mask=inside)


def launches(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    sequence_of: torch.Tensor,
    tables: torch.Tensor,
    pool: torch.Tensor,
    shape: GpuPageShape,
    layer: int,
    q_out: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> Iterator[Launch]:
    rows, heads, dim = check_rank("q_out", q_out, 3)
    sequences, max_pages = check_rank("tables", tables, 2)
    positions, _ = check_rank("cos", cos, 2)
    if dim != shape.dim:
        raise KernelError(f"q_out: heads of {dim} do not fit pages of heads of {shape.dim}")
    if (q_norm is None) != (k_norm is None):
        raise KernelError("q_norm, k_norm: give both or neither")
    shape.check_pool(pool)
    shape.check_layer(layer)
    check("q_out", q_out, torch.bfloat16, (rows, heads, dim))
    check("qkv", qkv, torch.float32, (rows, (heads + 2 * shape.kv_heads) * dim))
    check("cos", cos, torch.float32, (positions, dim // 2))
    check("sin", sin, torch.float32, (positions, dim // 2))
    check("slots", slots, torch.int32, (rows,))
    check("sequence_of", sequence_of, torch.int32, (rows,))
    check("tables", tables, torch.int32, (sequences, max_pages))
    if q_norm is not None and k_norm is not None:
        check("q_norm", q_norm, torch.float32, (dim,))
        check("k_norm", k_norm, torch.float32, (dim,))
    yield Launch(
        name=f"rotate_write {shape.name}{'' if q_norm is None else ' with norms'}",
        kernel=_rotate_write,
        grid=(rows, heads + 2 * shape.kv_heads, 1),
        arguments={
            "qkv": qkv, "cos": cos, "sin": sin, "slots": slots, "sequence_of": sequence_of, "tables": tables,
            "pool": pool,
            "q_out": q_out, "q_norm": cos if q_norm is None else q_norm, "k_norm": cos if k_norm is None else k_norm,
            "eps": eps, "max_pages": max_pages, "layer_offset": shape.layer_byte(layer),
            "page_stride": shape.page_bytes,
        },
        constants={
            "HEADS": heads, "KV_HEADS": shape.kv_heads, "DIM": dim, "HALVES": power_of_2(dim // 2),
            "PAGE": shape.page_tokens,
            "TILE": shape.tile_bytes, "FP8": shape.fp8, "NORMS": q_norm is not None, "LARGEST": FP8_LARGEST,
        },
        warps=1,
    )  # fmt: skip
