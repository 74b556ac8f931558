"""Promise 1 on a real GPU: a row's bits depend neither on the batch, the chunking, nor the number of splits.

What no compiler can show ahead of time is tested here: that the width of a matrix instruction takes no part in an
output's sum, on this very device."""

import numpy as np
import pytest
import torch

import baton_kernels as bk
from baton_kernels.triton import attention, norm, products
from baton_kernels.triton.attention import AttentionShape
from baton_kernels.triton.cases import attention as attention_cases
from baton_kernels.triton.cases import sampling as sampling_cases
from baton_kernels.triton.cases.agree import same_bits

LONG = (
    AttentionShape(32, 8, 128, 16, "bf16", (2000, 0, 1000, 4090), (64, 200, 30, 8)),
    AttentionShape(14, 2, 64, 16, "bf16", (2000, 0, 1000, 4090), (64, 200, 30, 8)),
    AttentionShape(32, 8, 128, 16, "fp8", (2000, 0, 1000, 4090), (64, 200, 30, 8)),
    AttentionShape(16, 2, 256, 16, "bf16", (2000, 0), (64, 100)),
)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_decode_and_prefill_give_a_row_the_same_bits_in_any_chunk(case, device):
    batch = attention_cases.make(case, device)
    whole = batch.attend(across=False)
    assert same_bits(batch.attend(across=True), whole)
    for sequence, (start, count) in enumerate(zip(case.starts, case.counts, strict=True)):
        for size in (1, 5, 33):
            for first in range(start, start + count, size):
                chunk = batch.only(sequence, first, min(size, start + count - first))
                at = int(chunk.first_row[0])
                rows = slice(at, at + int(chunk.counts[0]))
                for across in (False, True):
                    assert same_bits(chunk.attend(across=across)[rows], whole[rows])


def test_other_split_boundaries_give_other_bits(device, monkeypatch):
    """Negative control of the test above."""
    batch = attention_cases.make(LONG[0], device)
    before = batch.attend(across=True)
    monkeypatch.setattr(attention, "SPLIT", 512)
    assert not same_bits(batch.attend(across=True), before)


@pytest.mark.parametrize("shape", [(4096, 4096), (6144, 4096), (4096, 14336), (896, 4864)], ids=str)
def test_a_product_gives_a_row_the_same_bits_in_any_batch(shape, device):
    n, k = shape
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(300, k, generator=draw).bfloat16().to(device)
    weight = torch.randn(n, k, generator=draw).bfloat16().to(device)
    whole, gated = torch.empty(300, n, device=device), torch.empty(300, n // 2, dtype=torch.bfloat16, device=device)
    products.product(x, weight, out=whole)
    products.product_gated(x, weight, out=gated)
    for rows in (1, 2, 16, 17, 33, 64, 65, 128, 129):
        for first in (0, 300 - rows):
            part = x[first : first + rows].contiguous()
            out, half = torch.empty_like(whole[:rows]), torch.empty_like(gated[:rows])
            products.product(part, weight, out=out)
            products.product_gated(part, weight, out=half)
            assert same_bits(out, whole[first : first + rows])
            assert same_bits(half, gated[first : first + rows])


def test_a_norm_gives_a_row_the_same_bits_in_any_batch(device):
    x, weight = torch.randn(64, 4096, device=device), torch.randn(4096, device=device)
    whole, alone = (
        torch.empty(64, 4096, dtype=torch.bfloat16, device=device),
        torch.empty(1, 4096, dtype=torch.bfloat16, device=device),
    )
    norm.rmsnorm(x, weight, 1e-6, out=whole)
    for row in range(64):
        norm.rmsnorm(x[row : row + 1].clone(), weight, 1e-6, out=alone)
        assert same_bits(alone[0], whole[row])


@pytest.mark.parametrize("settings", sampling_cases.SETTINGS, ids=str)
def test_tokens_are_the_cpu_samplers_and_do_not_depend_on_the_batch(settings, device):
    logits = (np.random.default_rng(1).standard_normal((64, 128256)) * 3).astype(np.float32)
    drawn = sampling_cases.draw(logits, device, n_top=5, **settings)
    expected = bk.sample(logits, *sampling_cases.settings(64, **settings).values(), n_top=np.full(64, 5, np.int32))
    assert np.mean(drawn.tokens == expected.tokens) > 0.98  # a token at the edge of top-p may fall on either side
    assert np.array_equal(drawn.top_ids, expected.top_ids)
    for row in (0, 31, 63):
        alone = sampling_cases.draw(logits[row : row + 1], device, n_top=5, position=row, **settings)
        assert alone.tokens[0] == drawn.tokens[row]
        assert alone.logprobs.tobytes() == drawn.logprobs[row : row + 1].tobytes()


def test_a_captured_graph_gives_the_bits_of_the_eager_call(device):
    batch = attention_cases.make(LONG[0], device)
    eager = batch.attend(across=True)
    rows, heads, dim = batch.q.shape
    floats = attention.partial_floats(rows, heads, dim, batch.tables.shape[1], 16)
    out, partials = torch.full_like(eager, attention_cases.UNTOUCHED), torch.empty(floats, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention.attend(
            batch.q, batch.pool, batch.shape, attention_cases.LAYER, batch.tables, batch.starts, batch.counts,
            batch.first_row, scale=dim**-0.5, out=out, most_rows=200, partials=partials,
        )  # fmt: skip
    graph.replay()
    assert same_bits(out, eager)
