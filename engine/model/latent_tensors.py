"""Latent attention as attention over one KV head: checkpoints of latents become matrices over the latent.

A head scores q . (U c) for the latent c of a token, which is (U^T q) . c, and sums values V c, which is V times the sum
of latents. So U^T moves into the product of queries and V into that of outputs; what is left is one head whose key and
value is the latent, and whose key has the elements that all heads share and rotate before it. Pages hold it once for
all heads. The products are made once, when weights are packed, by kernels with equal bits on every machine."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.families.latent import Latent
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import MadeMatrix, Stored, Tensor, widened
from engine.model.config import ModelConfig

Floats = NDArray[np.float32]
QUERIES, KEY, VALUE, OUTPUTS = "over_latent.q", "over_latent.k", "over_latent.v", "over_latent.o"


def over_latents(config: ModelConfig, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the matrices of one KV head over the latent, in place of those that it is made of."""
    if config.latent is None:
        return checkpoint
    tensors = dict(checkpoint.tensors)
    for layer in range(config.layers):
        attention = f"model.layers.{layer}.self_attn."
        _Attention(config, config.latent, checkpoint, attention).move(tensors)
    return checkpoint.holding(tensors)


class _Attention:
    def __init__(self, config: ModelConfig, latent: Latent, checkpoint: Checkpoint, name: str) -> None:
        self._heads, self._hidden, self._latent, self._name = config.heads, config.hidden, latent, name
        query, own = latent.plain + latent.rotated, latent.plain + latent.values
        self._sides = {
            "q_proj": (config.heads * query, config.hidden),
            "kv_a_proj_with_mqa": (latent.dim, config.hidden),
            "kv_b_proj": (config.heads * own, latent.rank),
            "o_proj": (config.hidden, config.heads * latent.values),
        }
        self._sources = {part: self._take(checkpoint, part, shape) for part, shape in self._sides.items()}

    def move(self, tensors: dict[str, Stored]) -> None:
        for part in self._sides:
            del tensors[f"{self._name}{part}.weight"]
        dim = self._latent.dim
        width = self._heads * dim
        made: dict[str, tuple[tuple[int, int], tuple[str, ...], Callable[[], Floats]]] = {
            QUERIES: ((width, self._hidden), ("q_proj", "kv_b_proj"), self._queries),
            KEY: ((dim, self._hidden), ("kv_a_proj_with_mqa",), self._key),
            VALUE: ((dim, self._hidden), ("kv_a_proj_with_mqa",), self._value),
            OUTPUTS: ((self._hidden, width), ("o_proj", "kv_b_proj"), self._outputs),
        }
        for name, (shape, parts, make) in made.items():
            sources = tuple(self._sources[part] for part in parts)
            tensors[f"{self._name}{name}.weight"] = MadeMatrix(sources, shape, make)

    def _take(self, checkpoint: Checkpoint, part: str, shape: tuple[int, int]) -> Tensor:
        name = f"{self._name}{part}.weight"
        found = checkpoint.take(name, shape)
        if not isinstance(found, Tensor):
            remedy = "Serve the model in 16 bits, with --quantize int8 if it should be smaller."
            raise ModelError(found.path, name, f"is {found.dtype}, and latent attention joins it with others", remedy)
        return found

    def _numbers(self, part: str) -> Floats:
        return widened(self._sources[part])

    def _of_heads(self) -> tuple[Floats, Floats]:
        """The matrices of keys [heads, plain, rank] and of values [heads, values, rank]."""
        latent = self._latent
        both = self._numbers("kv_b_proj").reshape(self._heads, latent.plain + latent.values, latent.rank)
        return both[:, : latent.plain], both[:, latent.plain :]

    def _queries(self) -> Floats:
        latent, (keys, _) = self._latent, self._of_heads()
        queries = self._numbers("q_proj").reshape(self._heads, latent.plain + latent.rotated, self._hidden)
        out = np.empty((self._heads, latent.dim, self._hidden), np.float32)
        for head in range(self._heads):
            out[head, : latent.rotated] = queries[head, latent.plain :]
            out[head, latent.rotated :] = _product(keys[head].T, queries[head, : latent.plain].T)
        return out.reshape(-1, self._hidden)

    def _key(self) -> Floats:
        """The elements that are rotated, and the latent behind them."""
        return np.roll(self._numbers("kv_a_proj_with_mqa"), self._latent.rotated, axis=0)

    def _value(self) -> Floats:
        """The latent, and zeros behind it."""
        made = self._numbers("kv_a_proj_with_mqa")
        made[self._latent.rank :] = 0.0
        return made

    def _outputs(self) -> Floats:
        latent, (_, values) = self._latent, self._of_heads()
        outputs = self._numbers("o_proj").reshape(self._hidden, self._heads, latent.values)
        out = np.zeros((self._hidden, self._heads, latent.dim), np.float32)
        for head in range(self._heads):
            out[:, head, : latent.rank] = _product(outputs[:, head], values[head].T)
        return out.reshape(self._hidden, -1)


def _product(x: Floats, weight: Floats) -> Floats:
    """x times the transposed weight, with the bits of every machine."""
    n, k = weight.shape
    packed, out = np.zeros(kernels.pack_bytes("fp32", n, k), np.uint8), np.empty((len(x), n), np.float32)
    kernels.pack("fp32", np.ascontiguousarray(weight), packed)
    kernels.product(np.ascontiguousarray(x), packed, out)
    return out
