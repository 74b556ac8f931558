"""The points of the roofline: whole steps of the engine on the 0.5B shape, each kernel alone, and torch's linears.

engine/model/work.py says what work a step cannot avoid."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.cpu.runner import CpuRunner
from engine.model.page_memory import layer_bytes
from engine.model.weights import Weights
from engine.model.work import StepWork
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Sampling

PAGE_TOKENS = 32
CONTEXT = 512  # slots that a decode row sees
MOST_SEQUENCES, LONGEST = 32, 2048
Run = Callable[[], object]


class RooflineEngine:
    """A runner over a pool whose every slot holds finite numbers, as if prompts had been computed."""

    def __init__(self, weights: Weights, threads: int) -> None:
        config = weights.config
        self.weights, self._pages = weights, MOST_SEQUENCES * (CONTEXT // PAGE_TOKENS + 1) + LONGEST // PAGE_TOKENS
        size = self._pages * layer_bytes(weights, PAGE_TOKENS) * config.layers
        rng = np.random.default_rng(0)
        kind = np.float32 if weights.path == "fp32" else np.uint16
        pool = rng.integers(0, 0x3F80, size // np.dtype(kind).itemsize, np.uint16).astype(kind)
        self.runner = CpuRunner(weights, pool_buffer=pool.view(np.uint8), page_tokens=PAGE_TOKENS, threads=threads)
        self._tokens = tuple(int(t) for t in rng.integers(0, config.vocab, LONGEST))

    def decode(self, sequences: int, first: int = 0) -> Run:
        """A step with one row for each sequence; `first` chooses the tokens."""
        per = CONTEXT // PAGE_TOKENS + 1
        pieces = tuple(
            Piece(i, (self._tokens[first + i],), CONTEXT - 1, tuple(range(i * per, (i + 1) * per)), 1, 0, Sampling())
            for i in range(sequences)
        )
        return lambda: self.runner.compute(Plan(0, pieces))

    def prefill(self, rows: int) -> Run:
        piece = Piece(0, self._tokens[:rows], 0, tuple(range(self._pages)), 1, 0, Sampling())
        return lambda: self.runner.compute(Plan(0, (piece,)))


@dataclass(frozen=True, slots=True)
class Linear:
    name: str
    packed: NDArray[np.uint8]
    n: int
    k: int
    gated: bool = False

    @property
    def operations(self) -> int:
        """Operations per row."""
        return 2 * self.n * self.k

    def run(self, x: NDArray[np.float32], out: NDArray[np.float32], *, alone: bool = False) -> None:
        """Call the kernel as the engine does; `alone` leaves the gate out."""
        if self.gated and not alone:
            kernels.gated(x, self.packed, out)
        else:
            kernels.product(x, self.packed, out)


def layer_products(weights: Weights, index: int = 0) -> tuple[Linear, ...]:
    config, layer = weights.config, weights.layers[index]
    assert layer.gate_up is not None and layer.down is not None
    return (
        Linear("qkv", layer.qkv, config.qkv_width, config.hidden),
        Linear("o", layer.o, config.hidden, config.q_width),
        Linear("gate_up", layer.gate_up, 2 * config.ffn, config.hidden, gated=True),
        Linear("down", layer.down, config.hidden, config.ffn),
    )


def kernel_points(weights: Weights, rows: int) -> Iterator[tuple[str, StepWork, Run]]:
    """Each product alone, over the weights of all layers in turn, so that no weights are in a cache."""
    config = weights.config
    every = [layer_products(weights, index) for index in range(config.layers)]
    groups = [[layer[part] for layer in every] for part in range(4)]
    groups.append([Linear("head", weights.head, config.vocab, config.hidden)])
    for group in groups:
        kind = group[0]
        if kind.name == "head" and rows > MOST_SEQUENCES:
            continue  # a step samples few rows
        x = np.random.default_rng(1).standard_normal((rows, kind.k)).astype(np.float32)
        out = np.empty((rows, kind.n // 2 if kind.gated else kind.n), np.float32)

        def run(group: list[Linear] = group, x: Any = x, out: Any = out) -> None:
            for linear in group:
                linear.run(x, out)

        activations = (x.nbytes + out.nbytes) * (0 if rows <= MOST_SEQUENCES else 1)  # few rows stay in the caches
        moved = sum(linear.packed.nbytes + activations for linear in group)
        yield kind.name, StepWork(moved, sum(linear.operations for linear in group) * rows), run


def torch_pair(weights: Weights, rows: int) -> tuple[Run, Run]:
    """The products of all layers (and the head, for one row): ours and torch's bf16 linears of the same shapes."""
    import torch

    linears = [linear for index in range(weights.config.layers) for linear in layer_products(weights, index)]
    if rows == 1:
        linears.append(Linear("head", weights.head, weights.config.vocab, weights.config.hidden))
    widths, heights = {linear.k for linear in linears}, {linear.n for linear in linears}
    xs = {k: np.random.default_rng(k).standard_normal((rows, k)).astype(np.float32) for k in widths}
    outs = {n: np.empty((rows, n), np.float32) for n in heights}
    theirs_x = {k: torch.from_numpy(x).bfloat16() for k, x in xs.items()}
    theirs_w = [torch.full((linear.n, linear.k), 0.01, dtype=torch.bfloat16) for linear in linears]

    def ours() -> None:
        for linear in linears:
            linear.run(xs[linear.k], outs[linear.n], alone=True)

    def theirs() -> None:
        with torch.inference_mode():
            for linear, weight in zip(linears, theirs_w, strict=True):
                torch.nn.functional.linear(theirs_x[linear.k], weight)

    return ours, theirs
