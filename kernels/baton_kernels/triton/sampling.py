"""Logits to tokens on the device: the CPU sampler's rules and noise, without sorting.

The programs are in `sampling_body.py`: several survey the vocabulary in pieces, then one program per row decides its
token. Logprobs are of the raw distribution: before masks, temperature and filters."""

from collections.abc import Iterator

import torch

from baton_kernels.library import KernelError
from baton_kernels.triton.launch import Launch, architecture, blocks, check, check_rank, power_of_2, run
from baton_kernels.triton.sampling_body import settle, survey

PIECE = 2048  # tokens that one program surveys; the bits of logprobs depend on it
SHAPES = ((1, 1), (3, 17), (5, 700), (4, 5003))  # rows, vocab
_FIELDS = 5


def sample(
    logits: torch.Tensor,  # float32 [rows, vocab]
    temperature: torch.Tensor,  # float32 [rows], 0 is greedy
    top_k: torch.Tensor,  # int32 [rows], 0 is off
    top_p: torch.Tensor,  # float32 [rows], 1 is off
    min_p: torch.Tensor,  # float32 [rows], 0 is off
    seed: torch.Tensor,  # int64 [rows], the 64 bits of the seed
    choice: torch.Tensor,  # int32 [rows]
    position: torch.Tensor,  # int32 [rows]
    *,
    scratch: torch.Tensor,  # float32 of `scratch_floats(...)` elements
    tokens: torch.Tensor,  # int32 [rows]
    logprobs: torch.Tensor,  # float32 [rows]
    log_totals: torch.Tensor,  # float32 [rows], log of the sum of e^logit: for `top_logprobs`
    allowed: torch.Tensor | None = None,  # int32 [rows, vocab / 32 rounded up], bit i of word j allows token 32 j + i
) -> None:
    """Greedy rows take the largest logit; others take the largest sum of logit and Gumbel noise among the tokens that
    top-k, then top-p, then min-p keep. Ties go to the lowest id."""
    settings = (temperature, top_k, top_p, min_p, seed, choice, position)
    architecture(logits)
    run(list(launches(logits, *settings, scratch, tokens, logprobs, log_totals, allowed)))


def scratch_floats(rows: int, vocab: int) -> int:
    return rows * _FIELDS * blocks(vocab, PIECE)


def launches(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    choice: torch.Tensor,
    position: torch.Tensor,
    scratch: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    log_totals: torch.Tensor,
    allowed: torch.Tensor | None,
) -> Iterator[Launch]:
    rows, vocab = check_rank("logits", logits, 2)
    if vocab < 1:
        raise KernelError("logits: the vocabulary is empty")
    pieces, words = blocks(vocab, PIECE), blocks(vocab, 32)
    check("logits", logits, torch.float32, (rows, vocab))
    for name, tensor in (
        ("temperature", temperature),
        ("top_p", top_p),
        ("min_p", min_p),
        ("logprobs", logprobs),
        ("log_totals", log_totals),
    ):
        check(name, tensor, torch.float32, (rows,))
    for name, tensor in (("top_k", top_k), ("choice", choice), ("position", position), ("tokens", tokens)):
        check(name, tensor, torch.int32, (rows,))
    check("seed", seed, torch.int64, (rows,))
    check("scratch", scratch, torch.float32, (scratch.numel(),))
    if scratch.numel() < scratch_floats(rows, vocab):
        raise KernelError(f"scratch: {scratch.numel()} floats, needs {scratch_floats(rows, vocab)}")
    if allowed is not None:
        check("allowed", allowed, torch.int32, (rows, words))
    noise = {"seed": seed, "choice": choice, "position": position}
    shared = {
        "allowed": tokens if allowed is None else allowed,
        "scratch": scratch,
        "vocab": vocab,
        "words": words,
        "pieces": pieces,
    }
    masked = "" if allowed is None else " masked"
    yield Launch(
        name=f"sample survey{masked}",
        kernel=survey,
        grid=(rows, pieces, 1),
        arguments={"logits": logits, "temperature": temperature, **noise, **shared},
        constants={"PIECE": PIECE, "MASKED": allowed is not None},
    )
    yield Launch(
        name=f"sample settle{masked}",
        kernel=settle,
        grid=(rows, 1, 1),
        arguments={
            "logits": logits, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            **noise, **shared,
            "tokens": tokens, "logprobs": logprobs, "log_totals": log_totals,
        },
        constants={"PIECES": power_of_2(pieces), "MASKED": allowed is not None, "BLOCK": 4096},
        warps=8,
        registers=255,  # each row has one program; a second one per multiprocessor would not be worth spilled registers
    )  # fmt: skip
