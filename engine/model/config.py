"""Reads the config.json of a Hugging Face folder (Llama 2 and 3, Mistral, Qwen2, Qwen3) into plain numbers.

A worker does this first with a model. Fields and their defaults mean what they mean to transformers. A setting that
would change the computation and is not supported (other activations, sliding windows, unknown rope
scalings) is refused by name, never ignored."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.formats.errors import ModelError
from mesh.config.small_files import UnfitFile, read_small

_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",  # computes as Llama does, as long as no window hides a token
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}  # where config.json leaves num_key_value_heads out
_DEFAULT_WINDOW = 4096  # where config.json leaves sliding_window out
_MOST = {"num_hidden_layers": 4096, "max_position_embeddings": 1 << 27}  # more is a mistake that would take all memory


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

    def within(self, context_tokens: int) -> "ModelConfig":
        """The same model for requests of at most so many tokens; 0: as many as the model allows."""
        if context_tokens > self.context:
            problem = f"{context_tokens} is more than the {self.context} tokens that the model allows"
            raise ModelError("configuration", "context_tokens", problem, "Lower it, or leave it out.")
        return replace(self, context=context_tokens) if context_tokens else self

    def canonical(self) -> bytes:
        """Bytes for the model hash: equal for equal models, whatever else stands in config.json."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def read_config(folder: Path, *, context_tokens: int = 0) -> ModelConfig:
    """The configuration of the model in this folder. `context_tokens`: no request uses more; 0: as many as the model
    allows. A sliding window that hides nothing within them is no obstacle."""
    path = folder / "config.json"
    raw = _read_json(path)
    family = _family(path, raw)
    context = _positive(path, raw, "max_position_embeddings")
    _refuse(path, raw)
    _refuse_windows(path, raw, family, min(context, context_tokens or context))
    hidden, heads = _positive(path, raw, "hidden_size"), _positive(path, raw, "num_attention_heads")
    absent = heads if "num_key_value_heads" in raw else _KV_HEADS.get(family, heads)
    kv_heads = _positive(path, raw, "num_key_value_heads", absent)
    default_dim = 128 if family == "qwen3" else hidden // heads
    head_dim = _positive(path, raw, "head_dim", default_dim)
    if heads % kv_heads:
        raise ModelError(path, "num_key_value_heads", f"{kv_heads} does not divide {heads} heads", _DAMAGED)
    if head_dim % 16 or head_dim > 256:
        raise ModelError(path, "head_dim", f"{head_dim} is not a multiple of 16 up to 256", "Serve another model.")
    bias = family == "qwen2" or (family != "mistral" and _flag(path, raw, "attention_bias", False))
    return ModelConfig(
        family=family,
        vocab=_positive(path, raw, "vocab_size"),
        hidden=hidden,
        layers=_positive(path, raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_positive(path, raw, "intermediate_size"),
        context=context,
        eps=_number(path, raw, "rms_norm_eps", 1e-6),
        rope=_rope(path, raw, context),
        tied=_flag(path, raw, "tie_word_embeddings", False),
        qkv_bias=bias,
        o_bias=bias and family != "qwen2",
        qk_norm=family == "qwen3",
    )


_DAMAGED = "The folder is damaged; copy or download it again."
_OTHER = "Baton cannot compute this; serve a model without it."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(read_small(path))
    except FileNotFoundError:
        remedy = "Give the path of a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)."
        raise ModelError(path, "file", "does not exist", remedy) from None
    except UnfitFile as error:
        raise ModelError(path, "file", str(error), _DAMAGED) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(path, "file", f"cannot be read as JSON ({error})", _DAMAGED) from None
    if not isinstance(raw, dict):
        raise ModelError(path, "file", "is not a JSON object", _DAMAGED)
    return raw


def _family(path: Path, raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    known = [name for name in names if name in _FAMILIES] if isinstance(names, list) else []
    if not known:
        raise ModelError(path, "architectures", f"{names} is not supported", f"Baton serves {', '.join(_FAMILIES)}.")
    family, kind = _FAMILIES[known[0]], raw.get("model_type")
    if kind is not None and kind != family:  # transformers computes what model_type names, others what the class names
        problem = f"{kind!r} does not fit architectures, where {known[0]} is {family!r}"
        raise ModelError(path, "model_type", problem, "Correct the one that does not describe the weights.")
    return family


def _refuse(path: Path, raw: dict[str, Any]) -> None:
    """Refuses every setting that would silently change the computation."""
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):  # two names of one function
        raise ModelError(path, "hidden_act", f"{raw['hidden_act']!r} is not silu", _OTHER)
    if raw.get("mlp_bias"):
        raise ModelError(path, "mlp_bias", "is on", _OTHER)
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(path, "partial_rotary_factor", "is not 1", _OTHER)


def _refuse_windows(path: Path, raw: dict[str, Any], family: str, context: int) -> None:
    """Refuses attention that sees only the last tokens, unless the window is as long as the context."""
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
        raise ModelError(path, "layer_types", "sliding window attention is not supported", _OTHER)
    window, field = raw.get("sliding_window", None if family == "llama" else _DEFAULT_WINDOW), "sliding_window"
    if family.startswith("qwen"):
        field, windowed = "use_sliding_window", _flag(path, raw, "use_sliding_window", False)
        first = raw.get("max_window_layers", 28)
        none = isinstance(first, int) and first >= _positive(path, raw, "num_hidden_layers")
        window = window if windowed and kinds is None and not none else None
    if window is not None and not (isinstance(window, int) and window >= context):
        missing = "" if field in raw else f"; without the field transformers takes {_DEFAULT_WINDOW}"
        problem = f"sliding window attention ({window} of {context} tokens) is not supported{missing}"
        remedy = f"Set context_tokens to at most {window}: within so many tokens the window hides nothing."
        raise ModelError(path, field, problem, remedy if isinstance(window, int) and window > 0 else _OTHER)


def _rope(path: Path, raw: dict[str, Any], context: int) -> Rope:
    """`rope_scaling` (before transformers 5) wins over `rope_parameters`; `rope_theta` may stand beside either."""
    field = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    scaling = raw.get(field) or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        raise ModelError(path, field, "is not one flat set of numbers", _OTHER)
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(path, f"{field}.partial_rotary_factor", "is not 1", _OTHER)
    theta = _number(path, scaling if "rope_theta" in scaling else raw, "rope_theta", 10000.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", _number(path, scaling, "factor"))
    if kind == "llama3":
        own = raw if raw.get("original_max_position_embeddings") is not None else scaling
        return Rope(
            theta,
            "llama3",
            _number(path, scaling, "factor"),
            _number(path, scaling, "low_freq_factor"),
            _number(path, scaling, "high_freq_factor"),
            _positive(path, own, "original_max_position_embeddings", context),
        )
    raise ModelError(path, f"{field}.rope_type", f"{kind!r} is not none, linear or llama3", _OTHER)


def _positive(path: Path, raw: dict[str, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(path, field, f"{value!r} is not a positive whole number", _DAMAGED)
    if value > _MOST.get(field, value):
        raise ModelError(path, field, f"{value} is more than {_MOST[field]}", _DAMAGED)
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
