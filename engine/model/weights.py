"""From a model folder to weights that are ready to compute with: read, hash, choose a product path, pack, map.

A worker does this once, when it starts. Workers of one host share the packed file: the first one writes it under a lock
and the others find it. Once `open_weights` has returned, nothing here changes any more."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from engine.families.rope import Rope
from engine.formats.checkpoint import Array, Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor, is_quantized, widened
from engine.integers.forms import RECIPE
from engine.model.config import ModelConfig, read_config
from engine.model.digest import locked
from engine.model.layout import Fused, TensorSource, as_stored, fused_tensors, read_tensors, weights_dtype
from engine.model.matrices import (
    EqualMatrices,
    Fusion,
    Matrix,
    as_it_stands,
    checked,
    dense_matrix,
    products_of,
    quantized_matrix,
)
from engine.model.model_hash import hash_model
from engine.model.packed import Writing, open_packed
from engine.model.paths import choose_path
from engine.model.rope import head_order, rotary_tables
from mesh.config.worker_config import ROUNDED

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Packing = Fusion | EqualMatrices


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's packed weights. Those that the model lacks are None."""

    input_norm: Floats | None
    input_norm_bias: Floats | None
    qkv: Bytes
    qkv_bias: Floats | None
    q_norm: Floats | None  # [head_dim], or over all heads
    k_norm: Floats | None
    latent_norm: Floats | None  # norm of the latent that keys and values share
    o: Bytes
    o_bias: Floats | None
    attended_norm: Floats | None  # norm behind attention
    ffn_norm: Floats | None
    ffn_norm_bias: Floats | None
    gate_up: Bytes | None  # up alone where the MLP has no gate; beside experts, of the one that computes every row
    gate_up_bias: Floats | None
    down: Bytes | None
    down_bias: Floats | None
    router: Bytes | None  # scores of the experts and, behind them, of the one that computes every row
    router_bias: Floats | None
    experts_gate_up: Bytes | None  # [experts, bytes]
    experts_gate_up_bias: Floats | None  # those of all experts one behind the other
    experts_down: Bytes | None
    experts_down_bias: Floats | None
    sinks: Floats | None  # [heads]
    fed_norm: Floats | None  # norm behind the MLP
    cos: Floats | None  # [context, head_dim / 2], shared by layers; None: the layer rotates nothing
    sin: Floats | None

    @property
    def products(self) -> list[Bytes]:
        """The matrices that are multiplied as the product path or their own form says: all but the router."""
        found = [self.qkv, self.o, self.gate_up, self.down, *_each(self.experts_gate_up), *_each(self.experts_down)]
        return [matrix for matrix in found if matrix is not None]


@dataclass(frozen=True, slots=True)
class Weights:
    config: ModelConfig
    path: str  # the product path of attention and pages, and of dense matrices: fp32 | pairs | amx
    kv: str  # how pages hold keys and values: own (as the path does) | int8 | fp8 | int4
    products: str  # how matrices are multiplied: the path itself, or the integer forms, such as w8a8
    dtype: str  # dtype of the checkpoint: fp32 | fp16 | bf16; rounded when it was loaded: int8 or int4 from that
    model_hash: str
    embed: Bytes
    head: Bytes  # the embedding itself when tied
    norm: Floats
    norm_bias: Floats | None
    cos: Floats  # the model's first rope: [context, head_dim / 2]
    sin: Floats
    layers: tuple[LayerWeights, ...]

    @property
    def computed_as(self) -> str:
        """`products`, and what attention is computed as where that is not what integers have by themselves."""
        usual = self.path in (self.products, "pairs")
        return self.products if usual else f"{self.products}/{self.path}"

    @property
    def nbytes(self) -> int:
        arrays: list[Array | None] = [self.embed, self.norm, self.norm_bias, self.cos, self.sin, self.head]
        arrays += [getattr(layer, name) for layer in self.layers for name in layer.__slots__]
        return sum({id(array): array.nbytes for array in arrays if array is not None}.values())  # some are shared


def open_weights(
    folder: Path,
    cache: Path,
    *,
    product_path: str = "auto",
    context_tokens: int = 0,
    quantize: str = "",
    kv: str = baton_kernels.OWN,
) -> Weights:
    """Maps the packed weights of a Hugging Face folder. If the cache folder has none, it writes them first.
    `context_tokens`: what a request may have at most; 0: as many as the model allows. `quantize`: round the weights to
    int8 or int4; empty: take them as they are. `kv`: how pages hold keys and values."""
    config, checkpoint = read_config(folder, context_tokens=context_tokens), Checkpoint(folder)
    config = as_stored(config, checkpoint)
    limited = config.within(context_tokens)
    tensors = read_tensors(config, checkpoint)
    dtype = weights_dtype(config, tensors)
    stored = any(is_quantized(tensor) for tensor in tensors.values())
    choice = choose_path(product_path, dtype, quantize, stored=stored)
    path = choice.path
    packing = _packing(config, path, choice.recipe, tensors)
    with locked(cache / "weights.lock"):
        model_hash = hash_model(folder, config, tensors, cache)
        layout = f"{baton_kernels.KERNEL_VERSION}.{baton_kernels.LAYOUT_VERSION}"
        recipe = (
            f"{choice.recipe}.{RECIPE}" if choice.recipe in ROUNDED else f"{path}-{choice.recipe}" if stored else path
        )
        about = {"model": model_hash, "path": recipe, "kernels": layout}
        file = cache / f"{model_hash[:32]}-{recipe}-{layout}.weights"
        packed = open_packed(file, about)
        if packed is None:
            _pack(file, about, config, packing, tensors)
            packed = open_packed(file, about)
    if packed is None:
        remedy = "Check the disk under the cache folder, or choose another one."
        raise ModelError(file, "packed weights", "are not what was just written", remedy)
    if quantize:
        dtype = f"{quantize}.{RECIPE} from {dtype}"
    return _weights(limited, path, kv, dtype, model_hash, packed)


def _packing(config: ModelConfig, path: str, recipe: str, tensors: dict[str, Stored]) -> dict[str, Packing]:
    """The matrices of each fused tensor, in the form in which they are packed. Nothing is read yet."""

    def matrix(fused: Fused, source: TensorSource) -> Matrix:
        stored = checked(source.name, tensors[source.name])
        if fused.exact:
            packed = dense_matrix("fp32", fused.name, stored)
        elif recipe in ROUNDED:
            packed = quantized_matrix(recipe, fused.name, stored)
        else:
            packed = (dense_matrix if recipe == "dense" else as_it_stands)(path, fused.name, stored)
        return packed.ordered(row_order(config, source))

    def packing(fused: Fused) -> Packing:
        matrices, first = [matrix(fused, source) for source in fused.sources], fused.sources[0].name
        if not fused.copies:
            return Fusion.of(matrices)
        share = len(matrices) // fused.copies
        fusions = [Fusion.of(matrices[at : at + share]) for at in range(0, len(matrices), share)]
        return EqualMatrices.of(first, tensors[first].path, fusions)

    return {fused.name: packing(fused) for fused in fused_tensors(config) if fused.is_matrix}


def row_order(config: ModelConfig, source: TensorSource) -> NDArray[np.int64] | None:
    """The row of a tensor that stands at each place, where the kernels rotate other pairs than the checkpoint has, or
    where rows of gate and up alternate there."""
    if source.alternating:
        return np.arange(source.rows).reshape(-1, 2).T.reshape(-1)
    order = head_order(config.rope, config.head_dim)
    if order is None or not source.turned_heads:
        return None
    rows = np.arange(source.rows)
    turned = source.turned_heads * config.head_dim
    starts = np.arange(0, turned, config.head_dim)
    rows[:turned] = (starts[:, None] + order).reshape(-1)
    return rows


def _pack(
    file: Path, about: dict[str, str], config: ModelConfig, packing: dict[str, Packing], tensors: dict[str, Stored]
) -> None:
    fused, rotary = fused_tensors(config), ("float32", (config.context, config.head_dim // 2))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        one.name: ("uint8", packing[one.name].shape) if one.is_matrix else ("float32", (one.rows,)) for one in fused
    }
    ropes = _ropes(config)
    writing = Writing(file, about, shapes | dict.fromkeys((name for pair in ropes for name in pair), rotary))
    for one in fused:
        out = writing.tensor(one.name)
        if one.is_matrix:
            packing[one.name].pack(out)
        else:
            np.concatenate([_vector(config, one, source, tensors[source.name]) for source in one.sources], out=out)
            if one.divisor != 1.0:
                out /= np.float32(one.divisor)
    for (cos, sin), rope in ropes.items():
        rotary_tables(rope, config.head_dim, writing.tensor(cos), writing.tensor(sin))
    writing.finish()


def _ropes(config: ModelConfig) -> dict[tuple[str, str], Rope]:
    """The rotary tables of a model, by their names in the packed file."""
    ropes = {("cos", "sin"): config.rope}
    if config.local_rope is not None:
        ropes["local_cos", "local_sin"] = config.local_rope
    return ropes


def _vector(config: ModelConfig, fused: Fused, source: TensorSource, stored: Stored) -> Floats:
    numbers, rows = vector_of(source.name, stored, fused.added), row_order(config, source)
    return numbers if rows is None else numbers[rows]


def vector_of(name: str, stored: Stored, added: float) -> Floats:
    """The numbers of a vector, with what the family adds to each."""
    if not isinstance(stored, Tensor):
        raise ModelError(stored.path, name, f"is {stored.dtype}, and a vector has to be a number", "Take another file.")
    numbers = widened(stored)
    return numbers if stored.added == added else numbers + np.float32(added - stored.added)


def _weights(config: ModelConfig, path: str, kv: str, dtype: str, model_hash: str, packed: dict[str, Array]) -> Weights:
    given = [name for name in LayerWeights.__slots__ if name not in ("cos", "sin")]

    def layer(index: int) -> LayerWeights:
        local = "local_" if index in config.local_layers else ""
        cos, sin = (None if index in config.no_rope_layers else packed[f"{local}{table}"] for table in ("cos", "sin"))
        return LayerWeights(**{name: packed.get(f"{index}.{name}") for name in given}, cos=cos, sin=sin)  # type: ignore[arg-type]

    layers = tuple(layer(index) for index in range(config.layers))
    return Weights(
        config=config,
        path=path,
        kv=kv,
        products=products_of(matrix for one in layers for matrix in one.products),
        dtype=dtype,
        model_hash=model_hash,
        embed=packed["embed"],
        head=packed["embed" if config.tied else "head"],
        norm=packed["norm"],
        norm_bias=packed.get("norm_bias"),
        cos=packed["cos"],
        sin=packed["sin"],
        layers=layers,
    )


def _each(matrices: Bytes | None) -> list[Bytes]:
    return [] if matrices is None else list(matrices)
