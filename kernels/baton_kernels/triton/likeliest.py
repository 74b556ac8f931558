"""The most likely tokens of each row with their logprobs, best first, for clients that ask for top logprobs.

A row takes one pass over the vocabulary per token that it wants. Each pass finds the best token behind the one that
the pass before it found, so nothing is sorted."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.triton.launch import Launch, architecture, check, check_rank, run
from baton_kernels.triton.sampling_body import better, largest


def top_logprobs(
    logits: torch.Tensor,  # float32 [rows, vocab]
    log_totals: torch.Tensor,  # float32 [rows]
    wanted: torch.Tensor,  # int32 [rows]
    *,
    ids: torch.Tensor,  # int32 [rows, most], -1 beyond the number that a row wants
    logprobs: torch.Tensor,  # float32 [rows, most], -inf beyond
) -> None:
    """The most likely tokens of the raw distribution, best first, ties to the lowest id."""
    architecture(logits)
    run(list(launches(logits, log_totals, wanted, ids, logprobs)))


@triton.jit(do_not_specialize=["most"])
def _top(logits, log_totals, wanted, ids_out, logprobs, vocab, most, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.load(log_totals + row)
    count = tl.minimum(tl.load(wanted + row), vocab)
    last = float("inf")
    token = -1
    for i in range(most):
        best = float("-inf")
        best_token = 0x7FFFFFFF
        if i < count:
            for start in range(0, vocab, BLOCK):
                ids = start + tl.arange(0, BLOCK)
                x = tl.load(logits + row * vocab + ids, mask=ids < vocab, other=float("-inf"))
                behind = (ids < vocab) & ((x < last) | ((x == last) & (ids > token)))
                block_best, block_token = largest(tl.where(behind, x, float("-inf")), tl.where(behind, ids, 0x7FFFFFFF))
                best, best_token = better(best, best_token, block_best, block_token)
            last = best
            token = best_token
        tl.store(ids_out + row * most + i, tl.where(i < count, best_token, -1))
        tl.store(logprobs + row * most + i, tl.where(i < count, best - total, float("-inf")))


def launches(
    logits: torch.Tensor, log_totals: torch.Tensor, wanted: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor
) -> Iterator[Launch]:
    rows, vocab = check_rank("logits", logits, 2)
    _, most = check_rank("ids", ids, 2)
    check("logits", logits, torch.float32, (rows, vocab))
    check("log_totals", log_totals, torch.float32, (rows,))
    check("wanted", wanted, torch.int32, (rows,))
    check("ids", ids, torch.int32, (rows, most))
    check("logprobs", logprobs, torch.float32, (rows, most))
    yield Launch(
        name="top_logprobs",
        kernel=_top,
        grid=(rows, 1, 1),
        arguments={
            "logits": logits, "log_totals": log_totals, "wanted": wanted, "ids_out": ids, "logprobs": logprobs,
            "vocab": vocab, "most": most,
        },
        constants={"BLOCK": 4096},
        warps=16,
    )  # fmt: skip
