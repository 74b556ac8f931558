"""The least work of a step: bytes that it cannot avoid to move and operations that it cannot avoid to do.

Bytes are every packed weight once (of experts as many as compute one row), the keys and values that the step sees once,
and what it writes into pages. A layer with a window sees no more than that. Operations are those of products and
attention, a multiply-add being two. Benchmarks hold measured steps against this, and traces show it as the floor of a
request's stages (`engine/model/floor.py`)."""

from collections import Counter
from dataclasses import dataclass

from engine.model.config import ModelConfig
from engine.model.page_memory import layer_bytes
from engine.model.weights import LayerWeights, Weights

TILE_TOKENS = 32  # tokens of a page from which the bytes of one token are computed


@dataclass(frozen=True, slots=True)
class StepWork:
    nbytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The costs of one model, from which the work of any step is a few multiplications."""

    layers: int
    weight_bytes: int  # all packed weights that a step reads; of experts those that compute one row
    first_operations: int  # operations for one row's queries, keys and values in one layer
    rest_operations: int  # operations of the other products for one row in one layer
    head_operations: int  # operations of the head for one sampled row
    attention_operations: int  # operations of attention for one row with one slot in one layer
    token_bytes: int  # keys and values of one token in all layers
    expert_bytes: int = 0  # the part of the weight bytes that experts have
    windows: tuple[int, ...] = ()  # for each layer how many slots a token sees, 0: all; empty: all in every layer

    @classmethod
    def of(cls, weights: Weights) -> "ModelWork":
        config = weights.config
        experts = sum(_expert_bytes(layer) * config.experts_per_token for layer in weights.layers)
        return cls(
            layers=config.layers,
            weight_bytes=sum(_nbytes(layer) for layer in weights.layers) + experts + weights.head.nbytes,
            first_operations=2 * config.qkv_width * config.hidden,
            rest_operations=2 * config.hidden * (config.q_width + mlp_width(config)),
            head_operations=2 * config.vocab * config.hidden,
            attention_operations=4 * config.heads * config.head_dim,
            token_bytes=layer_bytes(weights, TILE_TOKENS) // TILE_TOKENS * config.layers,
            expert_bytes=experts,
            windows=config.windows,
        )

    def step(self, *, sequences: int = 1, rows: int, start: int, sampled: int) -> StepWork:
        """`sequences` pieces of `rows` rows each from slot `start`, the last `sampled` rows sampled. In the last layer
        only sampled rows go through attention and what follows it."""
        total, ends = sequences * rows, sequences * sampled
        products = self.first_operations * self.layers * total
        products += self.rest_operations * ((self.layers - 1) * total + ends) + self.head_operations * ends
        *windows, last = self.windows or (0,) * self.layers
        seen = _slots(start + rows - sampled, sampled, last)
        seen += sum(_slots(start, rows, window) * count for window, count in Counter(windows).items())
        moved = sum(_moved(start, rows, window) * count for window, count in Counter((*windows, last)).items())
        nbytes = self.weight_bytes + sequences * moved * (self.token_bytes / self.layers)
        return StepWork(nbytes, products + sequences * self.attention_operations * seen)


def _nbytes(layer: LayerWeights) -> int:
    """Bytes of a layer's matrices that are no expert's alone."""
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down, layer.router)
    return sum(matrix.nbytes for matrix in matrices if matrix is not None)


def _expert_bytes(layer: LayerWeights) -> int:
    """Bytes of one expert's matrices."""
    matrices = (layer.experts_gate_up, layer.experts_down)
    return sum(matrix.shape[1] for matrix in matrices if matrix is not None)


def mlp_width(config: ModelConfig) -> int:
    """Outputs and inputs over `hidden` of a row's products in the feed-forward block: the mean of all layers."""
    mixed = sum(config.has_experts(layer) for layer in range(config.layers))
    experts = 3 * (config.experts_per_token * config.expert_ffn + config.shared_ffn) + config.experts
    return ((config.layers - mixed) * (config.gate_up_width + config.ffn) + mixed * experts) // config.layers


def _slots(start: int, rows: int, window: int) -> int:
    """Slots that `rows` rows from slot `start` on see, their own included."""
    short = rows if not window else min(rows, max(0, window - start))  # rows that see everything before them
    return short * start + short * (short + 1) // 2 + (rows - short) * window


def _moved(start: int, rows: int, window: int) -> int:
    """Slots that the rows see, each read once, and their own, which they write."""
    return (min(start, window - 1) if window else start) + 2 * rows
