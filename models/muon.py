"""The optimizer: Muon for the matrices inside the layers, AdamW for the embedding and the norms.

Muon steps along the nearest orthogonal matrix to the momentum, so that every direction of a matrix is learned at an
equal rate; a Newton-Schulz iteration finds it from products only. Matrices of one shape are done as one batch."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # push singular values towards 1, quickly rather than exactly


@dataclass(frozen=True, slots=True)
class Rates:
    matrix: float = 0.015
    other: float = 0.003
    decay: float = 0.02  # decay of weights, per unit of rate


class Muon:
    def __init__(self, network: nn.Module, rates: Rates, *, dtype: torch.dtype) -> None:
        self._rates, self._dtype = rates, dtype
        named: dict[str, Tensor] = dict(network.named_parameters())
        self._matrices = {name: one for name, one in named.items() if one.dim() == 2 and "embed" not in name}
        self._others = {name: one for name, one in named.items() if name not in self._matrices}
        self.state: dict[str, Tensor] = {
            f"{name}.momentum": torch.zeros_like(one) for name, one in self._matrices.items()
        }
        for name, other in self._others.items():
            self.state |= {f"{name}.mean": torch.zeros_like(other), f"{name}.square": torch.zeros_like(other)}

    @torch.no_grad()
    def step(self, number: int, scale: float) -> None:
        """`number` counts from 0; `scale` is the schedule's share of the full rates. Clears the gradients."""
        self._step_matrices(scale)
        for name, values in self._others.items():
            self._adam(name, values, number, scale)

    def _step_matrices(self, scale: float) -> None:
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, values in self._matrices.items():
            gradient, momentum = _taken(values), self.state[f"{name}.momentum"]
            momentum.lerp_(gradient, 0.05)
            shapes[tuple(values.shape)].append((values, gradient.lerp(momentum, 0.95)))
        rate = self._rates.matrix * scale
        for (rows, columns), group in shapes.items():
            updates = orthogonal(torch.stack([update for _, update in group]).to(self._dtype)).float()
            for (matrix, _), update in zip(group, updates, strict=True):
                matrix.mul_(1 - rate * self._rates.decay)
                matrix.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def _adam(self, name: str, values: Tensor, number: int, scale: float) -> None:
        gradient, mean, square = _taken(values), self.state[f"{name}.mean"], self.state[f"{name}.square"]
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.05)
        size = (square / (1 - 0.95 ** (number + 1))).sqrt_().add_(1e-10)
        values.addcdiv_(mean, size, value=-self._rates.other * scale / (1 - 0.9 ** (number + 1)))


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrix to each of [count, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * (square @ square)) @ x
    found: Tensor = x.mT if tall else x
    return found


def _taken(values: Tensor) -> Tensor:
    gradient = values.grad
    assert gradient is not None, "step() before backward()"
    values.grad = None
    return gradient
