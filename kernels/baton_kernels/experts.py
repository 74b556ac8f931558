"""Mixtures of experts: the router's choice, the products of all chosen experts together, and the sums of rows.

`route` and `combine` are its two ends, with any products between; `experts` does the whole in one call, with equal
bits. A step reads the experts that its rows chose, each once. The sum over a row's experts goes by their rank, so a
row's bits do not depend on the other rows."""

from ctypes import byref
from dataclasses import dataclass

import numpy as np

from baton_kernels.arrays import F32, I32, U8, Array, buffer, pointer, rank, writable
from baton_kernels.deltas import AdaptedRows
from baton_kernels.forms import shape_of
from baton_kernels.layer import ACTIVATIONS, MlpWeights
from baton_kernels.library import KernelError, check, load
from baton_kernels.products import activation_index

SHARED = ("", "gated", "whole")  # how the expert that computes every row is weighed, in the order of calls.h


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weights of a layer's experts. Matrices are packed; those of experts are rows of uint8 [experts, bytes]."""

    router: Array  # outputs: the score of each expert, and behind them that of a gated shared expert
    gate_up: Array  # each expert's [2 * width, hidden], gate first
    down: Array  # each expert's [hidden, width]
    chosen: int  # experts that compute a row
    normalised: bool  # whether the weights of a row's experts are divided by their sum
    activation: str = ACTIVATIONS[0]
    shared_gate_up: Array | None = None  # that of an expert which computes every row
    shared_down: Array | None = None
    shared_gated: bool = True  # its weight is the sigmoid of its score; else 1
    factor: float = 1.0  # the weights of a row's experts are multiplied by it
    router_bias: Array | None = None  # [experts]
    gate_up_bias: Array | None = None  # [experts, 2 * width]; it is added before the activation
    down_bias: Array | None = None  # [experts, hidden]

    @property
    def count(self) -> int:
        return len(self.gate_up)

    @property
    def shared(self) -> str:
        """How the shared expert is weighed; empty: there is none."""
        return "" if self.shared_gate_up is None else "gated" if self.shared_gated else "whole"

    @property
    def scored(self) -> int:
        """Outputs of the router."""
        return self.count + (self.shared == "gated")

    @property
    def parts(self) -> int:
        """Experts that compute a row."""
        return self.chosen + bool(self.shared)

    def native(self) -> MlpWeights:
        """The addresses of the weights, which live as long as the arrays; KernelError where shapes do not fit."""
        scored, hidden = shape_of(self.router)
        if scored != self.scored or not 1 <= self.chosen <= self.count:
            raise KernelError(
                f"router: has {scored} outputs for {self.count} experts of which {self.chosen} are chosen"
            )
        pairs = [*zip(self.gate_up, self.down, strict=True)]
        if self.shared_gate_up is not None and self.shared_down is not None:
            pairs.append((self.shared_gate_up, self.shared_down))
        for gate_up, down in pairs:
            (both, k), (n, width) = shape_of(gate_up), shape_of(down)
            if (both, k, n) != (2 * width, hidden, hidden):
                raise KernelError(f"gate_up, down: an expert of {both} x {k} and {n} x {width} over {hidden} inputs")
        return MlpWeights(
            gate_up=None if self.shared_gate_up is None else buffer("shared_gate_up", self.shared_gate_up, 0),
            down=None if self.shared_down is None else buffer("shared_down", self.shared_down, 0),
            activation=activation_index(self.activation),
            gated=True,
            router=buffer("router", self.router, 0),
            experts_gate_up=pointer("gate_up", self.gate_up, U8, self.gate_up.shape),
            experts_down=pointer("down", self.down, U8, self.down.shape),
            gate_up_bytes=self.gate_up.shape[1],
            down_bytes=self.down.shape[1],
            experts=self.count,
            chosen=self.chosen,
            normalised=self.normalised,
            shared=SHARED.index(self.shared),
            factor=self.factor,
            router_bias=_bias("router_bias", self.router_bias, (scored,)),
            experts_gate_up_bias=_bias("gate_up_bias", self.gate_up_bias, (self.count, shape_of(self.gate_up[0])[0])),
            experts_down_bias=_bias("down_bias", self.down_bias, (self.count, hidden)),
        )


def experts(x: Array, mixture: Mixture, out: Array, residual: Array | None = None) -> None:
    """out [rows, hidden] = the mixture's result for x [rows, hidden], then + residual (may be out)."""
    rows, _ = rank("x", x, 2)
    pointer("x", x, F32, (rows, shape_of(mixture.router)[1]))
    run(x, mixture.native(), out, residual)


def run(
    x: Array,
    weights: MlpWeights,
    out: Array,
    residual: Array | None = None,
    *,
    adapted: AdaptedRows | None = None,
    layer: int = 0,
) -> None:
    """Computes the same as `experts`, with addresses that `Mixture.native` has checked. `adapted`: rows to which
    adapters add something in this layer."""
    shape = rank("x", x, 2)
    check(
        load().experts(
            pointer("x", x, F32, shape),
            byref(weights),
            shape[0],
            writable("out", out, F32, shape),
            None if residual is None else pointer("residual", residual, F32, shape),
            None,
            None if adapted is None else adapted.address,
            layer,
        )
    )


def route(
    scores: Array, chosen: int, *, normalised: bool, shared: str = "", factor: float = 1.0
) -> tuple[Array, Array]:
    """The experts of each row [rows, chosen], best first and equal scores by index, and their weights: the softmax over
    all experts, times the factor. With `shared`, the last weight is that of the shared expert: the sigmoid of the last
    score if it is gated, else 1."""
    rows, scored = rank("scores", scores, 2)
    ids = np.empty((rows, max(0, chosen)), np.int32)
    weights = np.empty((rows, max(0, chosen) + bool(shared)), np.float32)
    check(
        load().route(
            pointer("scores", scores, F32, (rows, scored)),
            rows,
            scored - (shared == "gated"),
            chosen,
            normalised,
            SHARED.index(shared),
            factor,
            pointer("ids", ids, I32, ids.shape),
            pointer("weights", weights, F32, weights.shape),
        )
    )
    return ids, weights


def combine(y: Array, places: Array, weights: Array, out: Array, residual: Array | None = None) -> None:
    """out [rows, k] = the sum over i of weights[:, i] * y[places[:, i]], i ascending, then + residual (may be out)."""
    (y_rows, k), (rows, parts) = rank("y", y, 2), rank("places", places, 2)
    check(
        load().combine(
            pointer("y", y, F32, (y_rows, k)),
            y_rows,
            pointer("places", places, I32, (rows, parts)),
            pointer("weights", weights, F32, (rows, parts)),
            rows,
            parts,
            k,
            None if residual is None else pointer("residual", residual, F32, (rows, k)),
            writable("out", out, F32, (rows, k)),
        )
    )


def _bias(name: str, bias: Array | None, shape: tuple[int, ...]) -> int | None:
    return None if bias is None else pointer(name, bias, F32, shape)


def bytes_read() -> int:
    """Bytes of experts' matrices that kernels have read since the process began. Benchmarks subtract them."""
    read: int = load().expert_bytes()
    return read
