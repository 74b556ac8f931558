"""The tensors of a model and how they are fused: one list that packing, hashing and loading share.

q, k and v become one product, gate and up another; a tied lm head is the embedding itself. Every tensor is either a
matrix, which is packed, or a vector, which is kept in fp32."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor, is_quantized
from engine.model.config import ModelConfig
from engine.model.expert_tensors import separated
from engine.model.latent_tensors import KEY, OUTPUTS, QUERIES, VALUE, over_latents

_IGNORED = (".rotary_emb.inv_freq",)  # a table in old checkpoints, which is computed here
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROWS = 1024  # rows of a matrix that are compared at once


@dataclass(frozen=True, slots=True)
class TensorSource:
    name: str  # the tensor's name in the checkpoint
    rows: int  # rows of a matrix, or length of a vector
    columns: int = 0  # 0: a vector
    turned_heads: int = 0  # its first rows are heads that are rotated: their rows are put into the kernels' order
    alternating: bool = False  # its rows belong in turn to gate and to up, which are put one behind the other

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns) if self.columns else (self.rows,)


@dataclass(frozen=True, slots=True)
class Fused:
    name: str  # the tensor's name in the packed file
    sources: tuple[TensorSource, ...]  # stacked in this order
    added: float = 0.0  # to each number of a vector
    divisor: float = 1.0  # each number of a vector is divided by it, after that
    copies: int = 0  # the sources are so many matrices of one shape, which lie one behind the other; 0: one matrix
    exact: bool = False  # a matrix of fp32 numbers on every product path, also where others are rounded

    @property
    def is_matrix(self) -> bool:
        return self.sources[0].columns > 0

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def columns(self) -> int:
        return self.sources[0].columns


def fused_tensors(config: ModelConfig) -> tuple[Fused, ...]:
    hidden = config.hidden
    whole = [Fused("embed", (TensorSource(_EMBEDDING, config.vocab, hidden),))]
    whole.extend(_norm(config, "norm", "model.norm", hidden, divisor=config.logits_divisor))
    if not config.tied:
        whole.append(Fused("head", (TensorSource(_HEAD, config.vocab, hidden),)))
    for layer in range(config.layers):
        source, name = f"model.layers.{layer}.", f"{layer}."
        whole.extend(_layer(config, source, name))
        whole.extend((_experts if config.has_experts(layer) else _mlp)(config, source, name))
    return tuple(whole)


def as_stored(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """The configuration as the checkpoint has it. A head that differs from the embedding is used, as transformers does,
    though config.json says that both are one."""
    head, embedding = checkpoint.tensors.get(_HEAD), checkpoint.tensors.get(_EMBEDDING)
    if not config.tied or head is None or embedding is None or same_values(head, embedding):
        return config
    return replace(config, tied=False)


def same_values(one: Stored, other: Stored) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return (one.dtype, one.shape) == (other.dtype, other.shape) and all(
        np.array_equal(one.values[row : row + _ROWS], other.values[row : row + _ROWS])
        for row in range(0, one.shape[0], _ROWS)
    )


def read_tensors(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, Stored]:
    """Exactly the tensors that the model needs, in the right shapes. Any other tensor must be known to be useless."""
    checkpoint = over_latents(config, separated(config, checkpoint))
    sources = [source for fused in fused_tensors(config) for source in fused.sources]
    tensors = {
        source.name: checkpoint.take(_stored(source.name, config, checkpoint), source.shape) for source in sources
    }
    for name, tensor in checkpoint.tensors.items():
        useless = name.endswith(_IGNORED) or (name == _HEAD and config.tied)
        if name not in tensors and not useless:
            remedy = "config.json describes another model than the checkpoint; copy both again."
            raise ModelError(tensor.path, name, "is not part of this model", remedy)
    return tensors


def _stored(name: str, config: ModelConfig, checkpoint: Checkpoint) -> str:
    """The name under which the checkpoint holds a tensor: an embedding that is the head may stand there as the head."""
    only_head = config.tied and _EMBEDDING not in checkpoint.tensors and _HEAD in checkpoint.tensors
    return _HEAD if name == _EMBEDDING and only_head else name


def weights_dtype(config: ModelConfig, tensors: dict[str, Stored]) -> str:
    """The one dtype of all matrices; of quantized ones all their types. Vectors may have another dtype, since they are
    widened exactly."""
    matrices = [fused for fused in fused_tensors(config) if fused.is_matrix and not fused.exact]
    products = [source.name for fused in matrices for source in fused.sources]
    if any(is_quantized(tensors[name]) for name in products):
        return "+".join(sorted({tensors[name].dtype for name in products}))
    dtype = tensors[products[0]].dtype
    for name in products:
        if tensors[name].dtype != dtype:
            remedy = "Convert the checkpoint to one dtype."
            raise ModelError(tensors[name].path, name, f"is {tensors[name].dtype} among {dtype} weights", remedy)
    return dtype


def _layer(config: ModelConfig, source: str, name: str) -> Iterator[Fused]:
    """The tensors of a layer without its feed-forward block, but for the norms around it."""
    norms, hidden, attention = config.norms, config.hidden, f"{source}self_attn."
    places = {
        "input_norm": norms.before_attention,
        "attended_norm": norms.behind_attention,
        "ffn_norm": norms.before_mlp,
        "fed_norm": norms.behind_mlp,
    }
    for place, norm in places.items():
        if norm:
            yield from _norm(config, f"{name}{place}", f"{source}{norm}", hidden)
    if config.latent is not None:
        latent = TensorSource(f"{attention}kv_a_layernorm.weight", config.latent.rank)
        yield Fused(f"{name}latent_norm", (latent,), norms.added)
    yield from _linear(f"{name}qkv", _qkv(config, attention), hidden, config.qkv_bias)
    if config.qk_norm:
        for part, heads in (("q", config.heads), ("k", config.kv_heads)):
            turned = heads if config.qk_norm_width else 1
            one = TensorSource(f"{attention}{part}_norm.weight", turned * config.head_dim, turned_heads=turned)
            yield Fused(f"{name}{part}_norm", (one,), norms.added)
    if config.row.sinks:
        yield Fused(f"{name}sinks", (TensorSource(f"{attention}sinks", config.heads),))
    outputs = "o_proj" if config.latent is None else OUTPUTS
    yield from _linear(f"{name}o", [TensorSource(f"{attention}{outputs}", hidden)], config.q_width, config.o_bias)


def _mlp(config: ModelConfig, source: str, name: str) -> Iterator[Fused]:
    mlp, tensors = f"{source}mlp.", config.row.tensors
    each = config.gate_up_width // len(tensors.gate_up)
    gate_up = [TensorSource(f"{mlp}{one}", each) for one in tensors.gate_up]
    yield from _linear(f"{name}gate_up", gate_up, config.hidden, config.mlp_bias)
    down = [TensorSource(f"{mlp}{tensors.down}", config.hidden)]
    yield from _linear(f"{name}down", down, config.ffn, config.mlp_bias)


def _experts(config: ModelConfig, source: str, name: str) -> Iterator[Fused]:
    row, hidden, width = config.row.experts, config.hidden, config.expert_ffn
    assert row is not None
    block, each = f"{source}{row.block}.", range(config.experts)
    alternating = len(row.gate_up) == 1
    gate_up = [
        TensorSource(f"{block}experts.{one}.{part}", 2 * width // len(row.gate_up), alternating=alternating)
        for one in each
        for part in row.gate_up
    ]
    down = [TensorSource(f"{block}experts.{one}.{row.down}", hidden) for one in each]
    router = [TensorSource(f"{block}{row.router}.weight", config.experts, hidden)]
    if config.shared_ffn:
        shared = f"{block}{row.shared_block}."
        if row.shared_gated:
            router.append(TensorSource(f"{block}{row.shared_block}_gate.weight", 1, hidden))
        parts = [TensorSource(f"{shared}{part}", config.shared_ffn) for part in row.gate_up]
        yield from _linear(f"{name}gate_up", parts, hidden, False)
        yield from _linear(f"{name}down", [TensorSource(f"{shared}{row.down}", hidden)], config.shared_ffn, False)
    yield Fused(f"{name}router", tuple(router), exact=True)
    if row.biases:
        yield Fused(f"{name}router_bias", (TensorSource(f"{block}{row.router}.bias", config.experts),))
    yield from _linear(f"{name}experts_gate_up", gate_up, hidden, row.biases, copies=config.experts)
    yield from _linear(f"{name}experts_down", down, width, row.biases, copies=config.experts)


def _norm(config: ModelConfig, name: str, source: str, width: int, divisor: float = 1.0) -> Iterator[Fused]:
    yield Fused(name, (TensorSource(f"{source}.weight", width),), config.norms.added, divisor)
    if config.norm == "layer":
        yield Fused(f"{name}_bias", (TensorSource(f"{source}.bias", width),), divisor=divisor)


def _qkv(config: ModelConfig, attention: str) -> list[TensorSource]:
    """The projections of queries, keys and values, in this order, by their names without an ending."""
    names, dim = config.row.tensors.qkv if config.latent is None else (QUERIES, KEY, VALUE), config.head_dim
    turned = config.heads, config.kv_heads, 0
    if len(names) == 1:
        return [TensorSource(f"{attention}{names[0]}", config.qkv_width, turned_heads=sum(turned))]
    counts = config.heads, config.kv_heads, config.kv_heads
    return [
        TensorSource(f"{attention}{name}", count * dim, turned_heads=heads)
        for name, count, heads in zip(names, counts, turned, strict=True)
    ]


def _linear(name: str, parts: list[TensorSource], columns: int, bias: bool, *, copies: int = 0) -> Iterator[Fused]:
    """The stacked matrix of these parts, which are named without an ending, and their bias."""
    matrices = tuple(replace(part, name=f"{part.name}.weight", columns=columns) for part in parts)
    yield Fused(name, matrices, copies=copies)
    if bias:
        yield Fused(f"{name}_bias", tuple(replace(part, name=f"{part.name}.bias") for part in parts))
