"""The matrices of a model's edges that an adapter brings along: its own embedding, its own head.

peft writes them for two reasons. A module in `modules_to_save` was trained as a whole. And beside a LoRA of embedding
or head stands the base's matrix itself (`base_layer.weight`), or that of a module whose vocabulary was resized: peft
puts it into the model when it reads the adapter. So it counts here, unless it is the model's own.

In a model whose head is its embedding (tied), such a base's matrix changes both, as in peft, where both are one tensor.
What `modules_to_save` and LoRA change is one module alone, unless `ensure_weight_tying` is on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from baton_kernels.deltas import LowRank, pack_delta
from engine.adapters.modules import EMBEDDING, HEAD
from engine.adapters.peft_settings import TRAINED_AGAIN, PeftSettings
from engine.formats.checkpoint import NUMBERS, Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor, widened
from engine.formats.writing import stored
from engine.model.config import ModelConfig
from engine.model.layout import as_stored
from engine.model.matrices import Matrix, as_it_stands
from engine.model.model_hash import refuse_not_finite
from engine.step.adapted import AdaptedEdges, Array, EmbeddingDelta

PREFIX = "base_model.model."
MATRIX, BASE_MATRIX = ".weight", ".base_layer.weight"
_EDGES = (EMBEDDING, HEAD)
_ROWS = 1024  # rows of a matrix that are compared at once
_OTHER_MODEL = "The adapter was trained on another model; name one that was trained on this model."
_GROWN = "Serve its base with that vocabulary: merge both with peft (merge_and_unload) into a model of its own."
_SMALLER = "Raise lora_bytes, or train a LoRA of the module (target_modules) without save_embedding_layers."


@dataclass(frozen=True, slots=True)
class BaseEdges:
    """Embedding and head of the model, as its checkpoint holds them."""

    tied: bool
    tensors: Mapping[str, Stored] = field(default_factory=dict)  # by module

    @classmethod
    def of(cls, model: ModelConfig, folder: Path | None) -> "BaseEdges":
        """Those of the model in this folder. Without one there is nothing to compare with."""
        if folder is None:
            return cls(model.tied)
        checkpoint = Checkpoint(folder)
        tied = as_stored(model, checkpoint).tied
        found = {
            each: checkpoint.tensors[f"{each}{MATRIX}"] for each in _EDGES if f"{each}{MATRIX}" in checkpoint.tensors
        }
        if tied and found:
            found = {each: found.get(each, next(iter(found.values()))) for each in _EDGES}
        return cls(tied, found)

    def holds(self, module: str, tensor: Tensor) -> bool:
        """Whether this is the model's own matrix, or what is left of it in the tensor's dtype."""
        own = self.tensors.get(module)
        if not isinstance(own, Tensor) or own.shape != tensor.shape:
            return False
        return all(_equal(tensor, own, first) for first in range(0, tensor.shape[0], _ROWS))


def is_edge_matrix(name: str) -> bool:
    return name in {f"{PREFIX}{module}{ending}" for module in _EDGES for ending in (MATRIX, BASE_MATRIX)}


def own_matrices(
    settings: PeftSettings, tensors: Mapping[str, Tensor], model: ModelConfig, base: BaseEdges
) -> dict[str, Tensor]:
    """The matrices that take the place of the model's, by module."""
    saved, changed = _saved(settings, tensors), dict[str, Tensor]()
    for module in _EDGES:
        for ending in (MATRIX, BASE_MATRIX):
            tensor = tensors.get(f"{PREFIX}{module}{ending}")
            if tensor is None:
                continue
            _check(f"{module}{ending}", tensor, model)
            if saved.get(module) is not tensor and not base.holds(module, tensor):
                changed[module] = tensor
    if base.tied:
        changed = _both(changed)
        saved = _both(saved) if settings.tying else saved
    return changed | saved


def tied_pair(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A and B of the embedding as those of a head that is tied to it, and the other way round."""
    down, up = pair
    return replace(up, values=up.values.T), replace(down, values=down.values.T)


def adapted_edges(
    parts: Mapping[str, LowRank], matrices: Mapping[str, Tensor], model: ModelConfig, most_bytes: int
) -> AdaptedEdges | None:
    """The edges, ready to compute with; None: they are the model's. `most_bytes`: of the matrices; 0: any."""
    embedding, head = parts.get(EMBEDDING), parts.get(HEAD)
    if embedding is None and head is None and not matrices:
        return None
    packed = _packed(matrices, most_bytes)
    return AdaptedEdges(
        embedding=packed.get(EMBEDDING),
        head=packed.get(HEAD),
        embedding_delta=None if embedding is None else _embedding_delta(embedding, model),
        head_delta=None if head is None else pack_delta([head], [model.vocab], model.hidden),
    )


def _saved(settings: PeftSettings, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of modules that the adapter holds as a whole."""
    found = dict[str, Tensor]()
    for ending in settings.saved:
        module = next((each for each in _EDGES if each == ending or each.endswith(f".{ending}")), None)
        if module is None:
            problem = f"names {ending!r}, and only {EMBEDDING} and {HEAD} can be replaced"
            raise ModelError(settings.path, "modules_to_save", problem, TRAINED_AGAIN)
        tensor = tensors.get(f"{PREFIX}{module}{MATRIX}")
        if tensor is None:
            remedy = "The folder is damaged or incomplete; copy or download it again."
            raise ModelError(settings.path, "modules_to_save", f"the file has no tensor of {module}", remedy)
        found[module] = tensor
    if settings.tying and found:  # peft keeps the embedding in the list only
        found |= {each: tensors[name] for each in _EDGES if (name := f"{PREFIX}{each}{MATRIX}") in tensors}
    return found


def _both(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrix of one module for both."""
    if not matrices:
        return {}
    first, last = matrices.get(EMBEDDING), matrices.get(HEAD)
    if first is not None and last is not None and not BaseEdges(True, {HEAD: last}).holds(HEAD, first):
        problem = f"differs from {EMBEDDING}, and both are one tensor in this model (tie_word_embeddings)"
        raise ModelError(last.path, HEAD, problem, TRAINED_AGAIN)
    one = first if first is not None else last
    assert one is not None
    return dict.fromkeys(_EDGES, one)


def _check(name: str, tensor: Tensor, model: ModelConfig) -> None:
    if len(tensor.shape) != 2 or tensor.shape[1] != model.hidden:
        problem = f"has shape {list(tensor.shape)}; the model says {[model.vocab, model.hidden]}"
        raise ModelError(tensor.path, name, problem, _OTHER_MODEL)
    check_vocabulary(name, tensor, tensor.shape[0], model.vocab)
    if tensor.dtype not in NUMBERS:
        raise ModelError(tensor.path, name, f"has dtype {tensor.dtype}", "Save the adapter in bf16, fp16 or fp32.")


def check_vocabulary(name: str, tensor: Tensor, tokens: int, vocab: int) -> None:
    if tokens != vocab:
        what = "tokens that the model lacks" if tokens > vocab else "fewer tokens than the model has"
        problem = f"has numbers for {tokens} tokens, and the model's vocabulary has {vocab}: it is for {what}"
        raise ModelError(tensor.path, name, problem, _GROWN)


def _packed(matrices: Mapping[str, Tensor], most_bytes: int) -> dict[str, Array]:
    """Each packed on the product path of its dtype; one tensor for both modules is packed once."""
    found, packed, total = dict[str, Array](), dict[int, Array](), 0
    for module, tensor in matrices.items():
        if id(tensor) not in packed:
            matrix: Matrix = as_it_stands("pairs" if tensor.dtype == "bf16" else "fp32", module, tensor)
            total += matrix.nbytes
            if most_bytes and total > most_bytes:
                problem = (
                    f"is a whole matrix; with it the adapter takes {total} bytes, and lora_bytes allows {most_bytes}"
                )
                raise ModelError(tensor.path, module, problem, _SMALLER)
            refuse_not_finite(module, tensor)
            packed[id(tensor)] = np.zeros(matrix.nbytes, np.uint8)
            matrix.pack(packed[id(tensor)])
        found[module] = packed[id(tensor)]
    return found


def _embedding_delta(part: LowRank, model: ModelConfig) -> EmbeddingDelta:
    """A column of A is looked up, as a row of the embedding is, and B multiplies it. So A is the identity there."""
    rank = len(part.down)
    one = np.eye(rank, dtype=np.float32)
    identity = stored(one, "bf16") if part.down.dtype == np.uint16 else one
    up = LowRank(identity, part.up, part.scale * model.embedding_scale)
    return EmbeddingDelta(np.ascontiguousarray(part.down.T), pack_delta([up], [model.hidden], rank))


def _equal(tensor: Tensor, own: Tensor, first: int) -> bool:
    one, other = (widened(replace(each, values=each.values[first : first + _ROWS])) for each in (tensor, own))
    rounded = stored(other, tensor.dtype)
    return np.array_equal(one, other) or np.array_equal(one, widened(replace(tensor, values=rounded)))
