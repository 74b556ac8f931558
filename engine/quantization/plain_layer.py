"""One layer of a model in plain numpy, over windows of text: what goes into each of its products.

Rounding with compensation looks at these inputs. Results need not have any worker's bits: they decide how weights are
rounded, and the rounded weights are what a folder holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.families.rope import Rope
from engine.formats.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.rope import head_order, rotary_tables

Floats = NDArray[np.float32]
Numbers = Mapping[str, Floats]  # the tensors of a layer by what follows its prefix: "mlp.up_proj.weight"
Heard = Callable[
    [str, Floats], None
]  # name of a product's inputs, see `engine/quantization/tensors.py`, and their rows
FOLLOWED = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "olmo2", "olmo3", "glm4", "gemma",
    "gemma2", "gemma3_text", "stablelm", "starcoder2", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
)  # fmt: skip


def refuse_unfollowed(folder: Path, config: ModelConfig) -> None:
    """Raises ModelError for a model whose layers are not those that are computed here."""
    if config.family not in FOLLOWED:
        problem = f"rounding with a text does not follow the layers of the family {config.family}"
        remedy = "Set quantize to 'int8' for the workers, which needs no text, or leave the weights as they are."
        raise ModelError(folder, "quantize", problem, remedy)


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rope for one window: an order of a head's elements in which i and i + half are a pair, and their angles."""

    order: NDArray[np.int64]
    cos: Floats  # [window, head_dim / 2]
    sin: Floats

    @classmethod
    def of(cls, rope: Rope, head_dim: int, window: int) -> "Rotation":
        cos, sin = (np.empty((window, head_dim // 2), np.float32) for _ in range(2))
        rotary_tables(rope, head_dim, cos, sin)
        order = head_order(rope, head_dim)
        return cls(np.arange(head_dim) if order is None else order, cos, sin)

    def rotated(self, x: Floats) -> Floats:
        """[tokens, heads, head_dim]; queries and keys have the same order, so scores are equal."""
        half = x.shape[-1] // 2
        cos, sin, x = self.cos[: len(x), None], self.sin[: len(x), None], x[..., self.order]
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@dataclass(frozen=True, slots=True)
class PlainLayers:
    config: ModelConfig
    rotation: Rotation
    local_rotation: Rotation | None
    later: Floats  # [window, window]: what a query adds to the scores of later keys

    @classmethod
    def of(cls, config: ModelConfig, window: int) -> "PlainLayers":
        rotation, local = (
            None if rope is None else Rotation.of(rope, config.head_dim, window)
            for rope in (config.rope, config.local_rope)
        )
        assert rotation is not None
        return cls(config, rotation, local, np.triu(np.full((window, window), -np.inf, np.float32), 1))

    def run(self, layer: int, numbers: Numbers, x: Floats, heard: Heard) -> Floats:
        """The output of a layer for one window of text: [tokens, hidden]."""
        norms = self.config.norms
        read = self._normed(numbers, norms.before_attention, x)
        heard("qkv", read)
        attended = self._attend(layer, *self._rotated(layer, numbers, read))
        heard("o", attended)
        x = self._added(numbers, norms.behind_attention, x, product(numbers, "self_attn.o_proj", attended))
        read = self._normed(numbers, norms.before_mlp, x)
        fed = self._mixed(numbers, read, heard) if self.config.has_experts(layer) else self._fed(numbers, read, heard)
        return self._added(numbers, norms.behind_mlp, x, fed)

    def _rotated(self, layer: int, numbers: Numbers, read: Floats) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values of the rows: [tokens, heads, head_dim] each."""
        config, names = self.config, self.config.row.tensors.qkv
        joined = np.concatenate([product(numbers, f"self_attn.{name}", read) for name in names], axis=1)
        ends = config.q_width, config.q_width + config.kv_heads * config.head_dim
        found = {"q": joined[:, : ends[0]], "k": joined[:, ends[0] : ends[1]], "v": joined[:, ends[1] :]}
        for part in "qk" if config.qk_norm_width else "":
            found[part] = self._normed(numbers, f"self_attn.{part}_norm", found[part])
        if config.qkv_limit:
            found = {part: np.clip(each, -config.qkv_limit, config.qkv_limit) for part, each in found.items()}
        q, k, v = (each.reshape(len(read), -1, config.head_dim) for each in found.values())
        if config.qk_norm and not config.qk_norm_width:
            q, k = self._normed(numbers, "self_attn.q_norm", q), self._normed(numbers, "self_attn.k_norm", k)
        if layer in config.no_rope_layers:
            return q, k, v
        local = self.local_rotation if layer in config.local_layers else None
        rotation = local or self.rotation
        return rotation.rotated(q), rotation.rotated(k), v

    def _attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """[tokens, heads * head_dim]"""
        (tokens, heads, dim), config = q.shape, self.config
        out, shared = np.empty((tokens, heads * dim), np.float32), heads // k.shape[1]
        hidden = self.later[:tokens, :tokens]
        if seen := config.window(layer):
            hidden = hidden + np.tril(np.full((tokens, tokens), -np.inf, np.float32), -seen)
        for head in range(heads):
            scores = q[:, head] @ k[:, head // shared].T * np.float32(config.scale)
            if cap := np.float32(config.attention_cap):
                scores = np.tanh(scores / cap) * cap
            scores = scores + hidden
            weights: Floats = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            out[:, head * dim : (head + 1) * dim] = weights @ v[:, head // shared]
        return out

    def _fed(self, numbers: Numbers, read: Floats, heard: Heard) -> Floats:
        heard("gate_up", read)
        tensors = self.config.row.tensors
        inner = self._between([product(numbers, f"mlp.{name}", read) for name in tensors.gate_up])
        heard("down", inner)
        return product(numbers, f"mlp.{tensors.down}", inner)

    def _mixed(self, numbers: Numbers, read: Floats, heard: Heard) -> Floats:
        """The sum of what the experts that the router chose make of each row."""
        config, row, out = self.config, self.config.row.experts, np.zeros_like(read)
        assert row is not None
        ids, weights = self._routed(product(numbers, f"{row.block}.gate", read))
        for expert in np.unique(ids):
            rows, ranks = np.nonzero(ids == expert)
            place = f"{row.block}.experts.{expert}."
            heard(f"experts_gate_up.{expert}", read[rows])
            inner = self._between([product(numbers, f"{place}{name}", read[rows]) for name in row.gate_up])
            heard(f"experts_down.{expert}", inner)
            out[rows] += weights[rows, ranks, None] * product(numbers, f"{place}{row.down}", inner)
        if config.shared_ffn:
            heard("gate_up", read)
            place = f"{row.block}.shared_expert."
            inner = self._between([product(numbers, f"{place}{name}", read) for name in row.gate_up])
            heard("down", inner)
            share = 1 / (1 + np.exp(-product(numbers, f"{row.block}.shared_expert_gate", read)))
            out += share * product(numbers, f"{place}{row.down}", inner)
        return out

    def _routed(self, scores: Floats) -> tuple[NDArray[np.int64], Floats]:
        """The experts of each row, and their weights: [tokens, chosen] each."""
        shares: Floats = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        ids = np.argsort(-scores, axis=1, kind="stable")[:, : self.config.experts_per_token]
        weights = np.take_along_axis(shares, ids, 1)
        return ids, weights / weights.sum(1, keepdims=True) if self.config.experts_normalised else weights

    def _between(self, products: list[Floats]) -> Floats:
        """The activation of the first product, times the second: both, where one tensor holds them."""
        if len(products) == 1 and self.config.row.tensors.gated:
            products = np.split(products[0], 2, axis=1)
        gate = products[0]
        if self.config.activation == "gelu_tanh":
            inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate**3)
            active: Floats = gate * np.float32(0.5) * (1 + np.tanh(inner))
        else:
            active = gate / (1 + np.exp(-np.clip(gate, -80, None)))
        return active * products[1] if len(products) > 1 else active

    def _normed(self, numbers: Numbers, name: str, x: Floats) -> Floats:
        """The rows behind a norm; an empty name: the model has none there."""
        if not name:
            return x
        config = self.config
        if config.norm == "layer":
            x = x - x.mean(-1, keepdims=True, dtype=np.float32)
        size: Floats = np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + np.float32(config.eps))
        out: Floats = x / size * (numbers[f"{name}.weight"] + np.float32(config.norms.added))
        return out + numbers[f"{name}.bias"] if config.norm == "layer" else out

    def _added(self, numbers: Numbers, norm: str, x: Floats, more: Floats) -> Floats:
        return x + self._normed(numbers, norm, more) * np.float32(self.config.residual_scale)


def product(numbers: Numbers, name: str, x: Floats) -> Floats:
    out: Floats = x @ numbers[f"{name}.weight"].T
    return out + numbers[f"{name}.bias"] if f"{name}.bias" in numbers else out
