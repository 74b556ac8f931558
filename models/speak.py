"""Answers from a network, many prompts at once, greedy or with the engine's own noise.

Rows are independent: each has its own slots in the cache, and its noise depends on the row's seed and the position of
the emitted token. That is the engine's noise, so a draft can use the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import baton_kernels
from models.network import Cache, TrainedNetwork

_ROWS = 64  # prompts at once


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """How a token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0

    def tokens(self, logits: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
        """One token per row of logits [rows, vocab]."""
        rows = len(logits)
        none: NDArray[np.int32] = np.zeros(rows, np.int32)
        chosen, *_ = baton_kernels.sample(
            np.ascontiguousarray(logits.numpy(), np.float32),
            temperature=np.full(rows, self.temperature, np.float32),
            top_k=none,
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            seed=np.array(seeds, np.uint64),
            choice=none,
            position=np.array(positions, np.int32),
            banned=np.zeros(0, np.int32),
            banned_starts=np.zeros(rows + 1, np.int32),
            n_top=none,
        )
        return [int(token) for token in chosen]


GREEDY = TokenChoice()


def answers(
    network: TrainedNetwork, prompts: Sequence[Sequence[int]], *, most: int, end: int, choice: TokenChoice = GREEDY
) -> list[list[int]]:
    """The emitted tokens of each prompt, end token included. Prompt i draws with seed i."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    out: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), _ROWS):
        group = order[first : first + _ROWS]
        for index, answer in zip(
            group, _group(network, [prompts[i] for i in group], group, most, end, choice), strict=True
        ):
            out[index] = answer
    return out


@torch.no_grad()
def logits_after(network: TrainedNetwork, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """The network's logits at each position of a given answer: [len(answer), vocab]."""
    tokens = torch.tensor([[*prompt, *answer]])
    count = tokens.shape[1]
    mask = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
    return network(tokens, mask)[0, len(prompt) - 1 : count - 1]  # type: ignore[no-any-return]


@torch.no_grad()
def _group(
    network: TrainedNetwork, prompts: list[Sequence[int]], seeds: list[int], most: int, end: int, choice: TokenChoice
) -> list[list[int]]:
    rows, longest = len(prompts), max(map(len, prompts))
    most = min(most, network.shape.context - longest)
    cache = Cache(network.shape, rows, longest + most)
    slots = torch.arange(longest + most)
    tokens = torch.zeros(rows, longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    at = slots[:longest].expand(rows, -1)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    logits = network(tokens, _seen(at, slots), cache, at)[torch.arange(rows), lengths - 1]
    out: list[list[int]] = [[] for _ in prompts]
    for position in range(most):
        chosen = choice.tokens(logits, seeds, [position] * rows)
        for answer, token in zip(out, chosen, strict=True):
            if not answer or answer[-1] != end:
                answer.append(token)
        if position + 1 == most or all(answer[-1] == end for answer in out):
            break
        at = (lengths + position)[:, None]
        logits = network(torch.tensor(chosen)[:, None], _seen(at, slots), cache, at)[:, -1]
    return out


def _seen(at: Tensor, slots: Tensor) -> Tensor:
    """The attention mask [rows, 1, tokens, slots]: a token sees the slots up to its own."""
    return (slots[None, None] <= at[:, :, None])[:, None]
