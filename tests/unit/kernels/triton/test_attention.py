"""Paged attention: close to the reference over poisoned pages, and equal bits however its rows are cut into calls."""

import dataclasses

import pytest
import torch

from baton_kernels.library import KernelError
from baton_kernels.triton import attention
from baton_kernels.triton.cases import attention as cases
from baton_kernels.triton.cases.agree import same_bits
from baton_kernels.triton.layout import GpuPageShape

WAYS = pytest.mark.parametrize("across", [False, True], ids=["prefill", "decode"])


@WAYS
@pytest.mark.parametrize("case", attention.SHAPES, ids=str)
def test_attention_agrees_with_its_reference_and_reads_no_unused_place(case, across):
    cases.check(case, "cpu", across=across)


@pytest.mark.parametrize("case", attention.SHAPES, ids=str)
def test_splits_give_the_same_bits_in_one_program_and_in_several(case):
    batch = cases.make(case, "cpu")
    assert same_bits(batch.attend(across=False), batch.attend(across=True))


@WAYS
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_any_chunk(across):
    batch = cases.make(attention.SHAPES[2], "cpu")
    whole = batch.attend(across=False)
    for sequence, (start, count) in enumerate(zip(batch.starts.tolist(), batch.counts.tolist(), strict=True)):
        for size in (1, 7) if across and sequence == 0 else (7,):  # sequence 0 has rows on both sides of a split
            for first in range(start, start + count, size):
                chunk = batch.only(sequence, first, min(size, start + count - first))
                at = chunk.first_row[0], chunk.first_row[0] + chunk.counts[0]
                assert same_bits(chunk.attend(across=across)[slice(*at)], whole[slice(*at)])


def test_other_split_boundaries_give_other_bits(monkeypatch):
    """Negative control of the tests above."""
    batch = cases.make(attention.SHAPES[2], "cpu")
    before = batch.attend(across=True)
    monkeypatch.setattr(attention, "SPLIT", 512)
    assert not same_bits(batch.attend(across=True), before)


@pytest.mark.parametrize("together", [3, 8])
def test_many_splits_merge_to_the_same_bits_however_many_are_fetched_together(monkeypatch, together):
    """The sequences have 8, 9 and 20 splits: whole groups and a rest."""
    monkeypatch.setattr(attention, "SPLIT", 32)
    monkeypatch.setattr(attention, "flight", lambda group, dim: together)
    batch = cases.make(attention.AttentionShape(2, 1, 16, 64, "fp8", (254, 287, 638), (3, 1, 2)), "cpu")
    assert same_bits(batch.attend(across=False), batch.attend(across=True))


def test_wrong_arguments_are_named():
    batch = cases.make(attention.SHAPES[0], "cpu")
    with pytest.raises(KernelError, match="pool"):
        dataclasses.replace(batch, pool=batch.pool[:-1]).attend(across=False)
    with pytest.raises(KernelError, match="tables"):
        dataclasses.replace(batch, tables=batch.tables.long()).attend(across=False)
    with pytest.raises(KernelError, match="q: 4 heads"):
        dataclasses.replace(batch, shape=GpuPageShape(2, 3, 64)).attend(across=False)
    with pytest.raises(KernelError, match="partials"):
        attention.attend(
            batch.q, batch.pool, batch.shape, 1, batch.tables, batch.starts, batch.counts, batch.first_row,
            scale=1.0, out=torch.empty(batch.q.shape[0], 256, dtype=torch.bfloat16), most_rows=5,
            partials=torch.empty(1),
        )  # fmt: skip
