"""Reads the config.json of a Hugging Face folder into plain numbers, by the row of its family (`engine/families`).

A worker does this first with a model. Fields and their defaults mean what they mean to transformers. A setting that
would change the computation and is not supported (other activations, unknown rope scalings) is refused by name, never
ignored."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from engine.families.experts import read_experts
from engine.families.family import Family, Norms, Setting
from engine.families.fields import DAMAGED, ConfigFields
from engine.families.latent import MOST_DIM, Latent, latent_scale, read_latent
from engine.families.rope import Rope, layers_without_rope, read_local_rope, read_rope
from engine.families.table import ARCHITECTURES, FAMILIES
from engine.families.windows import read_windows, sliding_layers
from engine.formats.errors import ModelError

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}  # several names of one function


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields from `norm` on have the values of Llama by default."""

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
    norm: str = "rms"  # rms | layer
    qk_norm_width: bool = False  # the norms of queries and keys are over all heads together
    mlp_bias: bool = False
    activation: str = "silu"  # silu | gelu_tanh | clamped_swiglu
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # what scores are multiplied by; 0: 1 / root of head_dim
    attention_cap: float = 0.0  # 0: none
    residual_scale: float = 1.0  # what attention and MLP add is multiplied by
    logits_divisor: float = 1.0
    logits_cap: float = 0.0  # 0: none
    local_rope: Rope | None = None  # the rope of `local_layers`, where it is another one
    local_layers: tuple[int, ...] = ()
    no_rope_layers: tuple[int, ...] = ()
    qkv_limit: float = 0.0  # queries, keys and values are brought into plus and minus this; 0: they are not
    experts: int = 0  # in each layer that is not in `dense_layers`; 0: every layer has one MLP
    experts_per_token: int = 0
    expert_ffn: int = 0
    experts_normalised: bool = False  # the weights of a row's experts are divided by their sum
    shared_ffn: int = 0  # width of the expert that computes every row; 0: there is none
    dense_layers: tuple[int, ...] = ()
    experts_factor: float = 1.0  # the weights of a row's experts are multiplied by it
    shared_gated: bool = True  # the expert that computes every row is weighed by a gate of its own
    latent: Latent | None = None  # keys and values are made of it; `head_dim` and `kv_heads` are then those over it
    windows: tuple[int, ...] = ()  # for each layer how many slots a token sees, 0: all; empty: no layer has a window

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def scale(self) -> float:
        """Factor of scores before the softmax."""
        return self.attention_scale or float(self.head_dim**-0.5)

    @property
    def row(self) -> Family:
        """The row of the family in the table."""
        return FAMILIES[self.family]

    @property
    def norms(self) -> Norms:
        return self.row.norms

    @property
    def gate_up_width(self) -> int:
        """Outputs of the first product of the MLP."""
        return self.ffn * (2 if self.row.tensors.gated else 1)

    def has_experts(self, layer: int) -> bool:
        return self.experts > 0 and layer not in self.dense_layers

    def window(self, layer: int) -> int:
        """How many slots a token sees in this layer, its own the last; 0: all."""
        return self.windows[layer] if self.windows else 0

    def within(self, context_tokens: int) -> "ModelConfig":
        """The same model for requests of at most so many tokens; 0: as many as the model allows."""
        if context_tokens > self.context:
            problem = f"{context_tokens} is more than the {self.context} tokens that the model allows"
            raise ModelError("configuration", "context_tokens", problem, "Lower it, or leave it out.")
        return replace(self, context=context_tokens) if context_tokens else self

    def beyond_llama(self) -> str:
        """The first thing that a layer computes beside what those of Llama, Mistral and Qwen do; empty: nothing.
        Windows do not count."""
        plain = ("llama", "mistral", "ministral", "qwen2", "qwen3")
        if self.family not in plain:
            return f"the family {self.family}"
        return next((name for name in _unusual(self) if name not in ("family", "windows")), "")

    def canonical(self) -> bytes:
        """Bytes for the model hash: equal for equal models, whatever else stands in config.json. A field that has
        Llama's value is left out if it came later, so that models keep their hash when families are added."""
        kept = asdict(self)
        unusual = _unusual(self)
        for one in fields(self):
            if one.name in _LATER and one.name not in unusual:
                del kept[one.name]
        for name in ("rope", "local_rope"):
            if kept.get(name):
                kept[name] = _without_later(kept[name])
        return json.dumps(kept, sort_keys=True).encode()

    def digest(self) -> str:
        return blake3(self.canonical()).hexdigest(8)


def read_config(folder: Path, *, context_tokens: int = 0) -> ModelConfig:
    """The configuration of the model in this folder. `context_tokens`: no request uses more; 0: as many as the model
    allows. A sliding window that hides nothing within them is none."""
    given = ConfigFields.of(folder / "config.json")
    family = _family(given)
    context = given.positive("max_position_embeddings")
    served = min(context, context_tokens or context)
    hidden, heads = given.positive("hidden_size"), given.positive("num_attention_heads")
    layers, biases = given.positive("num_hidden_layers"), family.biases
    _refuse(given, family)
    latent = read_latent(given, family)
    kv_heads, head_dim = (1, latent.dim) if latent is not None else _heads(given, family, hidden, heads)
    without = layers_without_rope(given, family, layers)
    sliding = sliding_layers(given, family) if family.ropes.local_theta else ()
    return ModelConfig(
        family=family.model_type,
        vocab=given.positive("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=given.positive("intermediate_size"),
        context=context,
        eps=given.number(family.norms.eps, family.norms.default_eps),
        rope=_rope(given, family, head_dim, context, served, latent),
        tied=given.flag("tie_word_embeddings", family.tied),
        qkv_bias=_setting(given, biases.qkv, biases.default),
        o_bias=_setting(given, biases.output, biases.default),
        qk_norm=bool(family.norms.queries),
        norm=family.norms.kind,
        qk_norm_width=family.norms.queries == "width",
        mlp_bias=_setting(given, biases.mlp, biases.default),
        activation=_activation(given, family),
        local_rope=read_local_rope(given, family, head_dim, context, served),
        local_layers=tuple(layer for layer, local in enumerate(sliding) if local),
        no_rope_layers=tuple(layer for layer, none in enumerate(without) if none),
        windows=read_windows(given, family, served),
        latent=latent,
        **_scalars(given, family, hidden)
        | ({} if latent is None else {"attention_scale": latent_scale(given, latent)}),
        **read_experts(given, family),
    )


def _heads(given: ConfigFields, family: Family, hidden: int, heads: int) -> tuple[int, int]:
    """How many heads have keys and values, and how many elements a head has."""
    absent = heads if "num_key_value_heads" in given.raw else family.kv_heads or heads
    kv_heads = given.positive("num_key_value_heads", absent)
    head_dim = given.positive("head_dim", family.head_dim or hidden // heads)
    if heads % kv_heads:
        given.refuse("num_key_value_heads", f"{kv_heads} does not divide {heads} heads", DAMAGED)
    if head_dim % 16 or head_dim > MOST_DIM:
        given.refuse("head_dim", f"{head_dim} is not a multiple of 16 up to {MOST_DIM}", "Serve another model.")
    return kv_heads, head_dim


def _rope(given: ConfigFields, family: Family, head_dim: int, context: int, served: int, latent: Latent | None) -> Rope:
    if latent is None:
        return read_rope(given, family, head_dim, context, served)
    return replace(read_rope(given, family, latent.rotated, context, served), dim=latent.rotated)


_LATER = frozenset(one.name for one in fields(ModelConfig)[15:])  # fields that Llama's hash does not contain
_FIRST_ROPE = frozenset(one.name for one in fields(Rope)[:6])


def _unusual(config: ModelConfig) -> list[str]:
    """The later fields that have another value than Llama's."""
    return [one.name for one in fields(config) if one.name in _LATER and getattr(config, one.name) != one.default]


def _without_later(rope: dict[str, Any]) -> dict[str, Any]:
    usual = {one.name: one.default for one in fields(Rope)}
    return {name: value for name, value in rope.items() if name in _FIRST_ROPE or value != usual[name]}


def _family(given: ConfigFields) -> Family:
    names = given.raw.get("architectures") or []
    known = [name for name in names if name in ARCHITECTURES] if isinstance(names, list) else []
    if not known:
        given.refuse("architectures", f"{names} is not supported", f"Baton serves {', '.join(ARCHITECTURES)}.")
    family, kind = ARCHITECTURES[known[0]], given.raw.get("model_type")
    if kind not in (None, family.model_type):  # transformers computes what model_type names, others what the class does
        problem = f"{kind!r} does not fit architectures, where {known[0]} is {family.model_type!r}"
        given.refuse("model_type", problem, "Correct the one that does not describe the weights.")
    return family


def _refuse(given: ConfigFields, family: Family) -> None:
    """Refuses every setting that would silently change the computation."""
    for field in family.refused:
        if given.raw.get(field):
            given.refuse(field, "is on")
    for field, value in family.fixed:
        if given.raw.get(field) not in (None, value):
            given.refuse(field, f"{given.raw[field]!r} is not {value!r}")
    if family.biases.mlp != "mlp_bias" and given.raw.get("mlp_bias"):
        given.refuse("mlp_bias", "is on")


def _activation(given: ConfigFields, family: Family) -> str:
    name = given.raw.get(family.activation, family.default_activation)
    if isinstance(name, str):
        name = dict(family.old_activations).get(name, name)
    if family.experts is not None and (own := family.experts.activation):
        if name != family.default_activation:
            given.refuse(family.activation, f"{name!r} is not {family.default_activation}")
        return own
    if name not in ACTIVATIONS:
        given.refuse(family.activation, f"{name!r} is not one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _setting(given: ConfigFields, setting: Setting, default: bool) -> bool:
    return given.flag(setting, default) if isinstance(setting, str) else setting


def _scalars(given: ConfigFields, family: Family, hidden: int) -> dict[str, Any]:
    names, defaults = family.scalars, dict(family.scalars.defaults)

    def number(field: str, otherwise: float) -> float:
        """The field's number, its default in this family, or `otherwise` where the family has no such field."""
        if not field:
            return otherwise
        default = defaults.get(field, 1.0)
        if given.raw.get(field, default) is None:
            return otherwise
        return given.number(field, default)

    root = number(names.attention_root, 0.0)
    return {
        "embedding_scale": float(hidden**0.5) if names.embedding_is_root else number(names.embedding, 1.0),
        "attention_scale": float(root**-0.5) if root else number(names.attention, 0.0),
        "attention_cap": number(names.attention_cap, 0.0),
        "residual_scale": number(names.residual, 1.0),
        "logits_divisor": number(names.logits, 1.0),
        "logits_cap": number(names.logits_cap, 0.0),
        "qkv_limit": number(names.qkv_limit, 0.0),
    }
