"""One layer of a model in plain numpy, over windows of text: what goes into each of its products.

Rounding with compensation looks at these inputs. Results need not have any worker's bits: they decide how weights are
rounded, and the rounded weights are what a folder holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.rope import rotary_tables

Floats = NDArray[np.float32]
Numbers = Mapping[str, Floats]  # the tensors of a layer by what follows its prefix: "mlp.up_proj.weight"
Heard = Callable[[str, Floats], None]  # name of a fused product, and its inputs [tokens, k]


def refuse_unfollowed(folder: Path, config: ModelConfig) -> None:
    """Raises ModelError for a model whose layers are not those that are computed here."""
    if beyond := config.beyond_llama():
        problem = f"rounding with a text follows the layers of Llama, Mistral and Qwen, and this model has {beyond}"
        remedy = "Set quantize to 'int8' for the workers, which needs no text, or leave the weights as they are."
        raise ModelError(folder, "quantize", problem, remedy)


@dataclass(frozen=True, slots=True)
class PlainLayers:
    config: ModelConfig
    window: int  # tokens that see each other
    cos: Floats  # [window, head_dim / 2]
    sin: Floats
    hidden: Floats  # [window, window]: what a query adds to the scores of later keys

    @classmethod
    def of(cls, config: ModelConfig, window: int) -> "PlainLayers":
        cos, sin = (np.empty((window, config.head_dim // 2), np.float32) for _ in range(2))
        rotary_tables(config.rope, config.head_dim, cos, sin)
        later = np.triu(np.full((window, window), -np.inf, np.float32), 1)
        return cls(config, window, cos, sin, later)

    def run(self, numbers: Numbers, x: Floats, heard: Heard, seen: int = 0) -> Floats:
        """The output of a layer for one window of text: [tokens, hidden]. `seen`: tokens that a token sees; 0: all."""
        config, eps = self.config, np.float32(self.config.eps)
        normed = _normed(x, numbers["input_layernorm.weight"], eps)
        heard("qkv", normed)
        q, k, v = (self._heads(numbers, f"self_attn.{name}_proj", normed) for name in "qkv")
        if config.qk_norm:
            q = _normed(q, numbers["self_attn.q_norm.weight"], eps)
            k = _normed(k, numbers["self_attn.k_norm.weight"], eps)
        attended = self._attend(self._rotated(q), self._rotated(k), v, seen)
        heard("o", attended)
        x = x + _product(numbers, "self_attn.o_proj", attended)
        normed = _normed(x, numbers["post_attention_layernorm.weight"], eps)
        heard("gate_up", normed)
        gate, up = (_product(numbers, f"mlp.{name}_proj", normed) for name in ("gate", "up"))
        inner = gate / (1 + np.exp(-np.clip(gate, -80, None))) * up
        heard("down", inner)
        out: Floats = x + _product(numbers, "mlp.down_proj", inner)
        return out

    def _heads(self, numbers: Numbers, name: str, x: Floats) -> Floats:
        """[tokens, heads, head_dim]"""
        return _product(numbers, name, x).reshape(len(x), -1, self.config.head_dim)

    def _rotated(self, x: Floats) -> Floats:
        half = self.config.head_dim // 2
        cos, sin = self.cos[: len(x), None], self.sin[: len(x), None]
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def _attend(self, q: Floats, k: Floats, v: Floats, seen: int) -> Floats:
        """[tokens, heads * head_dim]"""
        tokens, heads, dim = q.shape
        out, shared = np.empty((tokens, heads * dim), np.float32), heads // k.shape[1]
        hidden = self.hidden[:tokens, :tokens]
        if seen:
            hidden = hidden + np.tril(np.full((tokens, tokens), -np.inf, np.float32), -seen)
        for head in range(heads):
            scores = q[:, head] @ k[:, head // shared].T / np.float32(dim**0.5) + hidden
            weights: Floats = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            out[:, head * dim : (head + 1) * dim] = weights @ v[:, head // shared]
        return out


def _product(numbers: Numbers, name: str, x: Floats) -> Floats:
    out: Floats = x @ numbers[f"{name}.weight"].T
    return out + numbers[f"{name}.bias"] if f"{name}.bias" in numbers else out


def _normed(x: Floats, weight: Floats, eps: np.float32) -> Floats:
    size: Floats = np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + eps)
    out: Floats = x / size * weight
    return out
