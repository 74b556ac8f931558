"""Inputs for our kernels and for peers: the same attention over scattered pages and over dense tensors."""

from dataclasses import dataclass

import torch

from baton_kernels import triton as kernels
from baton_kernels.triton.attention import partial_floats

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """`batch` sequences of `context` slots, of which the last `rows` are queries."""

    batch: int
    context: int
    rows: int
    heads: int
    kv_heads: int
    dim: int
    q: torch.Tensor  # bf16 [batch * rows, heads, dim]
    pool: torch.Tensor
    shape: kernels.GpuPageShape
    tables: torch.Tensor  # int32 [batch, pages]
    starts: torch.Tensor
    counts: torch.Tensor
    first_row: torch.Tensor
    out: torch.Tensor
    partials: torch.Tensor | None

    def run(self) -> None:
        kernels.attend(
            self.q, self.pool, self.shape, 0, self.tables, self.starts, self.counts, self.first_row,
            scale=self.dim**-0.5, out=self.out, most_rows=self.rows, partials=self.partials,
        )  # fmt: skip

    @property
    def kv_bytes(self) -> int:
        return self.batch * self.context * self.kv_heads * self.dim * 2 * 2

    @property
    def operations(self) -> int:
        """Operations of causal attention, which is two products."""
        seen = self.rows * (self.context - self.rows) + self.rows * (self.rows + 1) // 2
        return 4 * self.batch * seen * self.heads * self.dim

    def pages(self) -> torch.Tensor:
        """bf16 [pages, 2, kv_heads, page_tokens, dim], in the pool's order."""
        return self.pool.view(torch.bfloat16).view(-1, 2, self.kv_heads, PAGE_TOKENS, self.dim)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same inputs without pages: q [batch, heads, rows, dim], k and v [batch, kv_heads, context, dim]."""
        ordered = self.pages()[self.tables.long()]  # [batch, pages, 2, kv_heads, page_tokens, dim]
        k, v = ordered.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
        q = self.q.view(self.batch, self.rows, self.heads, self.dim).transpose(1, 2)
        return q.contiguous(), k.contiguous(), v.contiguous()


def attention(
    device: torch.device, batch: int, context: int, rows: int, *, heads: int = 32, kv_heads: int = 8, dim: int = 128
) -> AttentionInputs:
    shape = kernels.GpuPageShape(1, kv_heads, dim, PAGE_TOKENS)
    each = -(-context // PAGE_TOKENS)
    pages = batch * each
    pool = torch.randn(pages * shape.page_bytes // 2, device=device, dtype=torch.bfloat16).view(torch.uint8)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    split = rows <= 16
    return AttentionInputs(
        batch=batch, context=context, rows=rows, heads=heads, kv_heads=kv_heads, dim=dim,
        q=torch.randn(batch * rows, heads, dim, device=device, dtype=torch.bfloat16),
        pool=pool, shape=shape, tables=order.int().view(batch, each).to(device),
        starts=ints([context - rows] * batch), counts=ints([rows] * batch),
        first_row=ints([index * rows for index in range(batch)]),
        out=torch.empty(batch * rows, heads * dim, device=device, dtype=torch.bfloat16),
        partials=torch.empty(partial_floats(batch * rows, heads, dim, each, PAGE_TOKENS), device=device)
        if split
        else None,
    )  # fmt: skip
