"""Reads the config.json of a Hugging Face folder (Llama 2 and 3, Qwen2, Qwen3) into plain numbers.

A worker does this first with a model. A setting that would change the computation and is not supported (other
activations, sliding windows, quantized weights, unknown rope scalings) is refused by name, never ignored."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.model.errors import ModelError

_FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    kind: str = "none"  # none | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    eps: float
    rope: Rope
    tied: bool  # the embedding is the lm head
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def canonical(self) -> bytes:
        """Bytes for the model hash: equal for equal models, whatever else stands in config.json."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    raw = _read_json(path)
    family = _family(path, raw)
    _refuse(path, raw, family)
    hidden, heads = _positive(path, raw, "hidden_size"), _positive(path, raw, "num_attention_heads")
    kv_heads = _positive(path, raw, "num_key_value_heads", heads)
    default_dim = 128 if family == "qwen3" else hidden // heads
    head_dim = _positive(path, raw, "head_dim", default_dim)
    if heads % kv_heads:
        raise ModelError(path, "num_key_value_heads", f"{kv_heads} does not divide {heads} heads", _DAMAGED)
    if head_dim % 16 or head_dim > 256:
        raise ModelError(path, "head_dim", f"{head_dim} is not a multiple of 16 up to 256", "Serve another model.")
    bias = family == "qwen2" or _flag(path, raw, "attention_bias", False)
    return ModelConfig(
        family=family,
        vocab=_positive(path, raw, "vocab_size"),
        hidden=hidden,
        layers=_positive(path, raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_positive(path, raw, "intermediate_size"),
        context=_positive(path, raw, "max_position_embeddings"),
        eps=_number(path, raw, "rms_norm_eps", 1e-6),
        rope=_rope(path, raw),
        tied=_flag(path, raw, "tie_word_embeddings", False),
        qkv_bias=bias,
        o_bias=bias and family != "qwen2",
        qk_norm=family == "qwen3",
    )


_DAMAGED = "The folder is damaged; copy or download it again."
_OTHER = "Baton cannot compute this; serve a model without it."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        remedy = "Give the path of a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)."
        raise ModelError(path, "file", "does not exist", remedy) from None
    except (OSError, ValueError) as error:
        raise ModelError(path, "file", f"cannot be read as JSON ({error})", _DAMAGED) from None
    if not isinstance(raw, dict):
        raise ModelError(path, "file", "is not a JSON object", _DAMAGED)
    return raw


def _family(path: Path, raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names if isinstance(names, list) else []:
        if name in _FAMILIES:
            return _FAMILIES[name]
    raise ModelError(path, "architectures", f"{names} is not supported", f"Baton serves {', '.join(_FAMILIES)}.")


def _refuse(path: Path, raw: dict[str, Any], family: str) -> None:
    """Refuses every setting that would silently change the computation."""
    if raw.get("quantization_config") is not None:
        remedy = "Use the checkpoint in bf16, fp16 or fp32."
        raise ModelError(path, "quantization_config", "quantized weights are not supported", remedy)
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(path, "hidden_act", f"{raw['hidden_act']!r} is not silu", _OTHER)
    if raw.get("mlp_bias"):
        raise ModelError(path, "mlp_bias", "is on", _OTHER)
    kinds = raw.get("layer_types")
    sliding = isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds)
    unguarded = family == "llama" and raw.get("sliding_window") is not None
    if raw.get("use_sliding_window") or sliding or unguarded:
        switch = "use_sliding_window" if raw.get("use_sliding_window") else "sliding_window"
        field = "layer_types" if sliding else switch
        raise ModelError(path, field, "sliding window attention is not supported", _OTHER)
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(path, "partial_rotary_factor", "is not 1", _OTHER)


def _rope(path: Path, raw: dict[str, Any]) -> Rope:
    """`rope_parameters` (transformers 5) or `rope_scaling` beside a `rope_theta` at top level (before)."""
    field = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    scaling = raw.get(field) or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        raise ModelError(path, field, "is not one flat set of numbers", _OTHER)
    theta = _number(path, scaling if "rope_theta" in scaling else raw, "rope_theta", 10000.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", _number(path, scaling, "factor"))
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            _number(path, scaling, "factor"),
            _number(path, scaling, "low_freq_factor"),
            _number(path, scaling, "high_freq_factor"),
            _positive(path, scaling, "original_max_position_embeddings"),
        )
    raise ModelError(path, f"{field}.rope_type", f"{kind!r} is not none, linear or llama3", _OTHER)


def _positive(path: Path, raw: dict[str, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(path, field, f"{value!r} is not a positive whole number", _DAMAGED)
    return value


def _number(path: Path, raw: dict[str, Any], field: str, default: float | None = None) -> float:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ModelError(path, field, f"{value!r} is not a positive number", _DAMAGED)
    return float(value)


def _flag(path: Path, raw: dict[str, Any], field: str, default: bool) -> bool:
    value = raw.get(field, default)
    if not isinstance(value, bool):
        raise ModelError(path, field, f"{value!r} is neither true nor false", _DAMAGED)
    return value
