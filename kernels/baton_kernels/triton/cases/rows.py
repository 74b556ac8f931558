"""Kernels that work on rows: norm, activation, rotary with page write, verification of drafts."""

import torch

from baton_kernels.triton import activation, norm, rotary, speculation
from baton_kernels.triton.cases.agree import BF16, agree, same_bits
from baton_kernels.triton.cases.attention import OTHERS
from baton_kernels.triton.layout import GpuPageShape, read_page, write_token


def check_norm(rows: int, hidden: int, device: str) -> None:
    draw = torch.Generator().manual_seed(hidden)
    x, delta = (torch.randn(rows, hidden, generator=draw).to(device) for _ in range(2))
    weight = torch.randn(hidden, generator=draw).to(device)
    for more in (None, delta):
        stream, out = x.clone(), torch.full((rows, hidden), torch.nan, dtype=torch.bfloat16, device=device)
        norm.rmsnorm(stream, weight, 1e-6, out=out, delta=more)
        summed = x if more is None else x + more
        assert same_bits(stream, summed), "the residual stream is not x + delta"
        agree(out, norm.reference(summed, weight, 1e-6), BF16)


def check_swiglu(rows: int, width: int, device: str) -> None:
    both = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(width)).to(device)
    out = torch.full((rows, width), torch.nan, dtype=torch.bfloat16, device=device)
    activation.swiglu(both, out=out)
    agree(out, activation.reference(both), BF16)


def check_rotary(heads: int, kv_heads: int, dim: int, page_tokens: int, kv_type: str, norms: bool, device: str) -> None:
    draw = torch.Generator().manual_seed(dim)
    shape, layer, rows = GpuPageShape(2, kv_heads, dim, page_tokens, kv_type, **OTHERS), 1, 7
    slots = torch.tensor([0, 1, 2, page_tokens, -1, 5, page_tokens + 3], dtype=torch.int32)
    sequence_of = torch.tensor([0, 0, 0, 0, 0, 1, 1], dtype=torch.int32)
    tables = torch.tensor([[3, 1], [0, 5]], dtype=torch.int32)
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim, generator=draw)
    cos, sin = torch.randn(2, 2 * page_tokens, dim // 2, generator=draw)
    q_norm, k_norm = torch.randn(2, dim, generator=draw) if norms else (None, None)
    pool = torch.full((6 * shape.page_bytes,), 0xFF, dtype=torch.uint8, device=device)
    q_out = torch.full((rows, heads, dim), 9.0, dtype=torch.bfloat16, device=device)
    rotary.rotate_write(
        qkv.flatten(1).to(device), cos.to(device), sin.to(device), slots.to(device), sequence_of.to(device),
        tables.to(device),
        pool, shape, layer, q_out=q_out, q_norm=None if q_norm is None else q_norm.to(device),
        k_norm=None if k_norm is None else k_norm.to(device),
    )  # fmt: skip
    live, place = slots >= 0, slots.clamp(min=0).long()
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    agree(q_out.cpu()[live], rotary.reference(q, cos[place], sin[place], q_norm, 1e-6)[live], BF16)
    assert (q_out.cpu()[~live] == 9).all(), "an empty row was written"
    k = rotary.reference(k, cos[place], sin[place], k_norm, 1e-6).float()
    expected = torch.full_like(pool, 0xFF, device="cpu")
    for row in range(rows):
        if live[row]:
            page = int(tables[sequence_of[row], slots[row] // page_tokens])
            write_token(expected, shape, layer, page, int(slots[row]) % page_tokens, k[row], v[row])
    for page in range(6):
        for got, wanted in zip(
            read_page(pool, shape, layer, page), read_page(expected, shape, layer, page), strict=True
        ):
            assert torch.equal(got.isnan(), wanted.isnan()), "other places than the rows' were written"
            if not wanted.isnan().all():
                agree(got[~wanted.isnan()], wanted[~wanted.isnan()], 2 * BF16)  # both are rounded
    own = slice(shape.layer_byte(0), shape.layer_byte(shape.layers))
    others = torch.ones(6, shape.page_bytes, dtype=torch.bool)
    others[:, own] = False
    assert (pool.cpu().view(6, -1)[others] == 0xFF).all(), "another model's layers were written"


def check_verify(sequences: int, most: int, device: str) -> None:
    draw = torch.Generator().manual_seed(most)
    sampled = torch.randint(0, 2, (sequences * (most + 1),), generator=draw).int()
    drafts = torch.randint(0, 2, (sequences, most), generator=draw).int()
    counts = torch.randint(-1, most + 1, (sequences,), generator=draw).int()
    first_row = (torch.arange(sequences) * (most + 1)).int()
    accepted, following = torch.full((2, sequences), -9, dtype=torch.int32, device=device)
    speculation.verify(
        *(x.to(device) for x in (sampled, drafts, counts, first_row)), accepted=accepted, following=following
    )
    expected = speculation.reference(sampled, drafts, counts, first_row)
    assert (accepted.tolist(), following.tolist()) == expected
