"""References of mixtures of experts in plain torch and numpy, beside those of `reference.py`. Only tests import it."""

from typing import Any

import numpy as np
import torch

from baton_kernels.products import Integers
from baton_kernels.reference import Array, between, integers, product


def route(
    scores: Array, chosen: int, *, normalised: bool, shared: str = "", factor: float = 1.0
) -> tuple[Array, Array]:
    t = torch.from_numpy(np.asarray(scores, np.float64))
    of_experts = t[:, :-1] if shared == "gated" else t
    weights, ids = of_experts.softmax(-1).topk(chosen)
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * factor
    if shared:
        of_shared = t[:, -1:].sigmoid() if shared == "gated" else torch.ones_like(t[:, :1])
        weights = torch.cat([weights, of_shared], -1)
    return ids.numpy(), weights.numpy()


def mixture(
    path: str,
    x: Array,
    ids: Array,
    weights: Array,
    experts: list[tuple[Any, Any]],
    biases: list[tuple[Array, Array]] | None = None,
    activation: str = "silu",
) -> Array:
    """The sum of a row's experts, each a pair of gate_up and down: numbers on a path, or integers. Where rows have one
    more weight than ids, the last expert computes all of them. `biases`: those of each expert's two products."""
    total = np.zeros(x.shape)
    for row in range(len(x)):
        of_row = [*ids[row], len(experts) - 1][: weights.shape[1]]
        for expert, weight in zip(of_row, weights[row], strict=True):
            gate_up, down = experts[expert]
            before, behind = biases[expert] if biases is not None else (0.0, np.zeros(1))
            gate, up = np.split(_any_product(path, x[row : row + 1], gate_up) + before, 2, axis=1)
            inner = between(activation, gate, up).astype(np.float32)
            total[row] += weight * (_any_product(path, inner, down)[0] + behind)
    return total


def _any_product(path: str, x: Array, weight: Any) -> Array:
    return integers(x, weight) if isinstance(weight, Integers) else product(path, x, weight)
