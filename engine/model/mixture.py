"""A layer's mixture of experts as the kernels take it, and the same computed expert by expert.

Serving computes it in one native call. The self-test and `baton verify` compute the parts one by one, with the product
that they hand in, and compare the bits."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from baton_kernels.experts import Mixture
from engine.model.config import ModelConfig
from engine.model.weights import Bytes, Floats, LayerWeights

_Product = Callable[[Floats, Bytes, Floats], object]


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
    )


def mix_one_by_one(
    x: Floats, mixture: Mixture, out: Floats, residual: Floats | None = None, *, product: _Product
) -> None:
    """Computes what `kernels.experts.experts` computes, one product at a time."""
    scores = np.empty((len(x), mixture.scored), np.float32)
    product(x, mixture.router, scores)
    ids, weights = routed(mixture, scores)
    y = np.empty((*weights.shape, x.shape[1]), np.float32)
    for expert in np.unique(ids):
        rows, ranks = np.nonzero(ids == expert)
        y[rows, ranks] = _fed(mixture, mixture.gate_up[expert], mixture.down[expert], x[rows], product)
    if mixture.shared_gate_up is not None and mixture.shared_down is not None:
        y[:, -1] = _fed(mixture, mixture.shared_gate_up, mixture.shared_down, x, product)
    places = np.arange(weights.size, dtype=np.int32).reshape(weights.shape)
    kernels.experts.combine(y.reshape(weights.size, -1), places, weights, out, residual)


def routed(mixture: Mixture, scores: Floats) -> tuple[NDArray[np.int32], Floats]:
    """The experts of these rows, and their weights."""
    normalised, shared, factor = mixture.normalised, mixture.shared, mixture.factor
    return kernels.experts.route(scores, mixture.chosen, normalised=normalised, shared=shared, factor=factor)


def _fed(mixture: Mixture, gate_up: Bytes, down: Bytes, x: Floats, product: _Product) -> Floats:
    """One expert's result for these rows."""
    n, width = kernels.shape_of(down)
    inner, out = np.empty((len(x), width), np.float32), np.empty((len(x), n), np.float32)
    kernels.gated(x, gate_up, inner, activation=mixture.activation)
    product(inner, down, out)
    return out
