"""A layer's mixture of experts as the kernels take it, and the same computed expert by expert.

Serving computes it in one native call. The self-test and `baton verify` compute the parts one by one, with the product
that they hand in, and compare the bits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from baton_kernels.deltas import AdaptedRows, add_deltas, expert_place
from baton_kernels.experts import Mixture
from engine.model.config import ModelConfig
from engine.model.weights import Bytes, Floats, LayerWeights

_Product = Callable[[Floats, Bytes, Floats, Floats | None], object]


def mixture_of(layer: LayerWeights, config: ModelConfig) -> Mixture | None:
    """The experts of a layer; None: it has one MLP."""
    if layer.router is None or layer.experts_gate_up is None or layer.experts_down is None:
        return None
    return Mixture(
        router=layer.router,
        gate_up=layer.experts_gate_up,
        down=layer.experts_down,
        chosen=config.experts_per_token,
        normalised=config.experts_normalised,
        activation=config.activation,
        shared_gate_up=layer.gate_up,
        shared_down=layer.down,
        shared_gated=config.shared_gated,
        factor=config.experts_factor,
        router_bias=layer.router_bias,
        gate_up_bias=_by_expert(layer.experts_gate_up_bias, config),
        down_bias=_by_expert(layer.experts_down_bias, config),
    )


def _by_expert(bias: Floats | None, config: ModelConfig) -> Floats | None:
    return None if bias is None else bias.reshape(config.experts, -1)


def mix_one_by_one(
    x: Floats,
    mixture: Mixture,
    out: Floats,
    residual: Floats | None = None,
    *,
    product: _Product,
    adapted: AdaptedRows | None = None,
    layer: int = 0,
) -> None:
    """Computes what `kernels.experts.run` computes, one product at a time."""
    scores = np.empty((len(x), mixture.scored), np.float32)
    product(x, mixture.router, scores, mixture.router_bias)
    ids, weights = routed(mixture, scores)
    y = np.empty((*weights.shape, x.shape[1]), np.float32)
    for expert in np.unique(ids):
        rows, ranks = np.nonzero(ids == expert)
        before, behind = (None if each is None else each[expert] for each in (mixture.gate_up_bias, mixture.down_bias))
        one = _Expert(mixture.gate_up[expert], before, mixture.down[expert], behind, mixture.activation)
        mine = None if adapted is None else adapted.at_expert(rows)
        y[rows, ranks] = one.fed(x[rows], product, mine, expert_place(layer, int(expert), mixture.count))
    if mixture.shared_gate_up is not None and mixture.shared_down is not None:
        shared = _Expert(mixture.shared_gate_up, None, mixture.shared_down, None, mixture.activation)
        mine = None if adapted is None else adapted.at_expert(np.arange(len(x)))
        y[:, -1] = shared.fed(x, product, mine, expert_place(layer, mixture.count, mixture.count))
    places = np.arange(weights.size, dtype=np.int32).reshape(weights.shape)
    kernels.experts.combine(y.reshape(weights.size, -1), places, weights, out, residual)


def routed(mixture: Mixture, scores: Floats) -> tuple[NDArray[np.int32], Floats]:
    """The experts of these rows, and their weights."""
    normalised, shared, factor = mixture.normalised, mixture.shared, mixture.factor
    return kernels.experts.route(scores, mixture.chosen, normalised=normalised, shared=shared, factor=factor)


@dataclass(frozen=True, slots=True)
class _Expert:
    gate_up: Bytes
    gate_up_bias: Floats | None
    down: Bytes
    down_bias: Floats | None
    activation: str

    def fed(self, x: Floats, product: _Product, adapted: AdaptedRows | None, place: int) -> Floats:
        """The expert's result for these rows. `place`: of its first product in tables of adapters."""
        n, width = kernels.shape_of(self.down)
        inner, out = np.empty((len(x), width), np.float32), np.empty((len(x), n), np.float32)
        if adapted is None:
            kernels.gated(x, self.gate_up, inner, self.gate_up_bias, activation=self.activation)
        else:
            both = np.empty((len(x), 2 * width), np.float32)
            product(x, self.gate_up, both, self.gate_up_bias)
            add_deltas(x, both, adapted, place)
            kernels.between(both, inner, activation=self.activation)
        product(inner, self.down, out, self.down_bias)
        if adapted is not None:
            add_deltas(inner, out, adapted, place + 1)
        return out
