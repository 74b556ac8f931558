"""Attention over pages whose unused places are NaN; the rows may be split into several calls."""

from dataclasses import dataclass

import torch

from baton_kernels.triton import attention
from baton_kernels.triton.attention import AttentionShape
from baton_kernels.triton.cases.agree import agree
from baton_kernels.triton.launch import blocks
from baton_kernels.triton.layout import GpuPageShape, write_token

LAYER, UNTOUCHED = 1, 7.0
OTHERS = {"first_byte": 128, "other_bytes": 192}  # another model's share of each page, before and behind


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A filled pool and the query rows that attend to it."""

    shape: GpuPageShape
    pool: torch.Tensor
    q: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    first_row: torch.Tensor

    def attend(self, *, across: bool) -> torch.Tensor:
        rows, heads, dim = self.q.shape
        out = torch.full((rows, heads * dim), UNTOUCHED, dtype=torch.bfloat16, device=self.q.device)
        floats = attention.partial_floats(rows, heads, dim, self.tables.shape[1], self.shape.page_tokens)
        attention.attend(
            self.q,
            self.pool,
            self.shape,
            LAYER,
            self.tables,
            self.starts,
            self.counts,
            self.first_row,
            scale=dim**-0.5,
            out=out,
            most_rows=int(self.counts.max()),
            partials=torch.full((floats,), torch.nan, device=self.q.device) if across else None,
        )
        return out

    def only(self, sequence: int, start: int, count: int) -> "AttentionBatch":
        """The batch of one sequence with `count` of its rows, from slot `start` on."""
        skipped = start - int(self.starts[sequence])
        first = self.first_row[sequence : sequence + 1] + skipped
        return AttentionBatch(
            self.shape,
            self.pool,
            self.q,
            self.tables[sequence : sequence + 1].contiguous(),
            self.starts.new_tensor([start]),
            self.counts.new_tensor([count]),
            first,
        )

    def rows_of(self, out: torch.Tensor, sequence: int) -> torch.Tensor:
        first = int(self.first_row[sequence])
        return out[first : first + int(self.counts[sequence])]


def make(case: AttentionShape, device: str, seed: int = 0) -> AttentionBatch:
    draw = torch.Generator().manual_seed(seed)
    shape = GpuPageShape(2, case.kv_heads, case.dim, case.page_tokens, case.kv_type, **OTHERS)
    most = max(blocks(s + c, case.page_tokens) for s, c in zip(case.starts, case.counts, strict=True)) + 1
    sequences = len(case.starts)
    tables = torch.randperm(sequences * most, generator=draw).view(sequences, most).int()
    pool = torch.full((sequences * most * shape.page_bytes,), 0xFF, dtype=torch.uint8)  # NaN of every type
    for table, start, count in zip(tables, case.starts, case.counts, strict=True):
        for slot in range(start + count if count else 0):
            k, v = torch.randn(2, case.kv_heads, case.dim, generator=draw)
            write_token(pool, shape, LAYER, int(table[slot // case.page_tokens]), slot % case.page_tokens, k, v)
    q = torch.randn(sum(case.counts) + 2, case.heads, case.dim, generator=draw).bfloat16()
    first = [1 + sum(case.counts[:i]) for i in range(sequences)]
    starts, counts, first_row = (torch.tensor(x, dtype=torch.int32) for x in (case.starts, case.counts, first))
    return AttentionBatch(shape, *(x.to(device) for x in (pool, q, tables, starts, counts, first_row)))


def check(case: AttentionShape, device: str, *, across: bool) -> None:
    batch = make(case, device)
    out = batch.attend(across=across).cpu()
    expected = attention.reference(
        batch.q.cpu(),
        batch.pool,
        batch.shape,
        LAYER,
        batch.tables,
        batch.starts,
        batch.counts,
        batch.first_row,
        case.dim**-0.5,
    )
    theirs = ~expected.isnan()
    agree(out[theirs], expected[theirs], 8e-3)  # probabilities are rounded to bf16 as well
    assert (out[~theirs] == UNTOUCHED).all(), "rows of no sequence were written"
