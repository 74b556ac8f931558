"""The least work of a step: bytes that it cannot avoid to move and operations that it cannot avoid to do.

Bytes are every packed weight once, the keys and values that the step sees once, and what it writes into pages. A layer
with a window sees no more than that.
Operations are those of products and attention, a multiply-add being two. Benchmarks hold measured steps against this,
and traces show it as the floor of a request's stages (`engine/model/floor.py`)."""

from collections import Counter
from dataclasses import dataclass

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
    weight_bytes: int  # all packed weights that a step reads
    first_operations: int  # operations for one row's queries, keys and values in one layer
    rest_operations: int  # operations of the other products for one row in one layer
    head_operations: int  # operations of the head for one sampled row
    attention_operations: int  # operations of attention for one row with one slot in one layer
    token_bytes: int  # keys and values of one token in all layers
    windows: tuple[int, ...] = ()  # for each layer how many slots a token sees, 0: all; empty: all in every layer

    @classmethod
    def of(cls, weights: Weights) -> "ModelWork":
        config = weights.config
        return cls(
            layers=config.layers,
            weight_bytes=sum(_nbytes(layer) for layer in weights.layers) + weights.head.nbytes,
            first_operations=2 * config.qkv_width * config.hidden,
            rest_operations=2 * config.hidden * (config.q_width + config.gate_up_width + config.ffn),
            head_operations=2 * config.vocab * config.hidden,
            attention_operations=4 * config.heads * config.head_dim,
            token_bytes=layer_bytes(weights, TILE_TOKENS) // TILE_TOKENS * config.layers,
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
    return layer.qkv.nbytes + layer.o.nbytes + layer.gate_up.nbytes + layer.down.nbytes


def _slots(start: int, rows: int, window: int) -> int:
    """Slots that `rows` rows from slot `start` on see, their own included."""
    short = rows if not window else min(rows, max(0, window - start))  # rows that see everything before them
    return short * start + short * (short + 1) // 2 + (rows - short) * window


def _moved(start: int, rows: int, window: int) -> int:
    """Slots that the rows see, each read once, and their own, which they write."""
    return (min(start, window - 1) if window else start) + 2 * rows
