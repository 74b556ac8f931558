"""From a PEFT folder to an adapter that is ready to compute with: read, checked against the model, hashed, packed.

An adapter that names a module which the model lacks is refused, whatever it names besides: without that module the
answers would be those of another model. The hash is of what is added to the model, so folders with equal tensors and
scales have equal ones, and every worker of a mesh finds the same."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from blake3 import blake3

from baton_kernels.deltas import PRODUCTS, LowRank, PackedDelta, expert_place, pack_delta
from engine.adapters.edges import (
    PREFIX,
    BaseEdges,
    adapted_edges,
    check_vocabulary,
    is_edge_matrix,
    own_matrices,
    tied_pair,
)
from engine.adapters.modules import (
    EMBEDDING,
    HEAD,
    AdaptedProduct,
    adapted_products,
    edge_modules,
    expert_products,
    in_model,
)
from engine.adapters.peft_settings import MOST_RANK, PEFT_FOLDER, TRAINED_AGAIN, PeftSettings
from engine.adapters.vocabulary import refuse_new_tokens
from engine.formats.checkpoint import NUMBERS, read_file
from engine.formats.errors import ModelError
from engine.formats.stored import Tensor, widened
from engine.model.config import ModelConfig
from engine.model.layout import TensorSource
from engine.model.model_hash import refuse_not_finite
from engine.model.weights import Floats, row_order
from engine.step.adapted import AdapterWeights

TENSORS = "adapter_model.safetensors"
_LINEAR = ".lora_A.weight", ".lora_B.weight"
_LOOKED_UP = ".lora_embedding_A", ".lora_embedding_B"
Pair = tuple[Tensor, Tensor]  # A and B
_OTHER_MODEL = "The adapter was trained on another model; name one that was trained on this model."
_AGAIN = "The folder is damaged or incomplete; copy or download it again."


def read_adapter(
    folder: Path, model: ModelConfig, *, most_rank: int = MOST_RANK, most_bytes: int = 0, base: Path | None = None
) -> AdapterWeights:
    """The adapter in this folder. ModelError names the file, the field or tensor, and what to do. `most_bytes`: of its
    own embedding and head; 0: any. `base`: the model's folder; None: there is none to compare these with."""
    settings, tensors = PeftSettings.of(folder), _tensors(folder)
    if base is not None:
        refuse_new_tokens(folder, base)
    products, experts, edges = adapted_products(model), expert_products(model), edge_modules(model)
    sources = {name: source for product in (*products, *experts) for name, source in product.parts.items()} | edges
    at_edges = any(name.startswith(f"{PREFIX}{module}.") for name in tensors for module in edges)
    base_edges = BaseEdges.of(model, base if at_edges else None)
    matrices = own_matrices(settings, tensors, model, base_edges)
    low_rank = {name: tensor for name, tensor in tensors.items() if not is_edge_matrix(name)}
    given = _by_module(folder, low_rank, set(sources), model)
    if not given and not settings.saved:
        raise ModelError(folder / TENSORS, "file", "holds no tensors of an adapter", _AGAIN)
    _check_targets(settings, set(sources), set(given))
    if base_edges.tied and settings.tying:
        _tie(given)
    parts = {module: _part(settings, module, sources[module], pair, model, most_rank) for module, pair in given.items()}
    of_experts = _deltas(experts, parts, expert_place(model.layers, 0, model.experts))
    return AdapterWeights(
        digest=_digest(parts, matrices),
        deltas=_deltas(products, parts, model.layers * len(PRODUCTS)),
        rank=max((len(part.down) for part in parts.values()), default=0),
        edges=adapted_edges(parts, matrices, model, most_bytes),
        experts=of_experts if any(of_experts) else (),
    )


def base_model(folder: Path) -> str:
    """The name of the model that an adapter was trained on; empty: its folder does not say."""
    return PeftSettings.of(folder).base


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / TENSORS
    if path.is_file():
        return read_file(path)
    if (folder / "adapter_model.bin").exists():
        command = "load it with peft and call save_pretrained(folder), which writes safetensors"
        problem = "is missing, and adapter_model.bin can hold programs and is not opened"
        raise ModelError(path, "file", problem, f"Convert it once: {command}.")
    raise ModelError(path, "file", "is missing", PEFT_FOLDER)


def _by_module(folder: Path, tensors: Mapping[str, Tensor], known: set[str], model: ModelConfig) -> dict[str, Pair]:
    """A and B of each module, by the ending of their names."""
    found = dict[str, dict[int, Tensor]]()
    for name, tensor in tensors.items():
        ending = next((each for each in (*_LINEAR, *_LOOKED_UP) if name.endswith(each)), None)
        module = name.removeprefix(PREFIX).removesuffix(ending or "")
        if ending is None:
            raise ModelError(tensor.path, name, "is neither lora_A nor lora_B of a module", _OTHER_MODEL)
        if module not in known:
            if in_model(model, module):
                raise ModelError(
                    tensor.path, name, f"belongs to {module}, in which no adapter is computed", TRAINED_AGAIN
                )
            raise ModelError(tensor.path, name, f"belongs to {module}, which the model lacks", _OTHER_MODEL)
        if ending not in _endings(module):
            raise ModelError(tensor.path, name, f"is of another kind of module than {module}", _OTHER_MODEL)
        found.setdefault(module, {})[_endings(module).index(ending)] = tensor
    for module, pair in found.items():
        if len(pair) < 2:
            raise ModelError(folder / TENSORS, module, "has one of lora_A and lora_B only", _AGAIN)
    return {module: (pair[0], pair[1]) for module, pair in found.items()}


def _endings(module: str) -> tuple[str, str]:
    return _LOOKED_UP if module == EMBEDDING else _LINEAR


def _tie(given: dict[str, Pair]) -> None:
    """Gives embedding and head the same addition, in a model where both are one."""
    for one, other in ((EMBEDDING, HEAD), (HEAD, EMBEDDING)):
        if one not in given:
            continue
        pair = given.setdefault(other, tied_pair(given[one]))
        for mine, theirs in zip(pair, tied_pair(given[one]), strict=True):
            if mine.dtype != theirs.dtype or not np.array_equal(mine.values, theirs.values):
                problem = f"differs from that of {one}, and ensure_weight_tying says that both are one"
                raise ModelError(mine.path, other, problem, TRAINED_AGAIN)


def _check_targets(settings: PeftSettings, known: set[str], given: set[str]) -> None:
    """Every module that the configuration lists is in the model, and the file has tensors of it and of no other."""
    for target in settings.targets:
        if not any(_ends(module, target) for module in known):
            problem = f"{target!r} is no module of the model in which an adapter is computed"
            raise ModelError(settings.path, "target_modules", problem, _OTHER_MODEL)
        if not any(_ends(module, target) for module in given):
            raise ModelError(settings.path, "target_modules", f"{TENSORS} has no tensors of {target!r}", _AGAIN)
    tied = {EMBEDDING, HEAD} if settings.tying else set[str]()
    for module in sorted(given - tied) if settings.targets else ():
        if not any(_ends(module, target) for target in settings.targets):
            problem = f"does not name {module}, of which {TENSORS} has tensors"
            raise ModelError(settings.path, "target_modules", problem, _AGAIN)


def _ends(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _part(
    settings: PeftSettings,
    module: str,
    source: TensorSource,
    pair: Pair,
    model: ModelConfig,
    most_rank: int,
) -> LowRank:
    rank = settings.rank_of(module)
    if rank > most_rank:
        limit = "that Baton computes" if most_rank == MOST_RANK else "that max_lora_rank allows"
        remedy = "Train one of a smaller rank." if most_rank == MOST_RANK else f"Raise it, to {MOST_RANK} at most."
        raise ModelError(settings.path, "r", f"{module} has rank {rank}, more than the {most_rank} {limit}", remedy)
    shapes = (rank, source.columns), (source.rows, rank)
    for ending, tensor, shape in zip(_endings(module), pair, shapes, strict=True):
        name = f"{module}{ending}"
        if module in (EMBEDDING, HEAD) and model.vocab in shape and len(tensor.shape) == 2:
            check_vocabulary(name, tensor, tensor.shape[shape.index(model.vocab)], model.vocab)
        if tensor.shape != shape:
            problem = f"has shape {list(tensor.shape)}; rank and model say {list(shape)}"
            raise ModelError(tensor.path, name, problem, _OTHER_MODEL)
        if tensor.dtype not in NUMBERS:
            raise ModelError(tensor.path, name, f"has dtype {tensor.dtype}", "Save the adapter in bf16, fp16 or fp32.")
        refuse_not_finite(name, tensor)
    half = all(tensor.dtype == "bf16" for tensor in pair)
    down, up = (tensor.values if half else widened(tensor) for tensor in pair)
    order = row_order(model, source)
    return LowRank(
        np.ascontiguousarray(down), np.ascontiguousarray(up if order is None else up[order]), settings.scale_of(module)
    )


def _deltas(
    products: Iterable[AdaptedProduct], parts: Mapping[str, LowRank], count: int
) -> tuple[PackedDelta | None, ...]:
    """The additions to `count` products, each at its place."""
    found: list[PackedDelta | None] = [None] * count
    for product in products:
        if product.parts.keys() & parts.keys():
            found[product.index] = _packed(product, parts)
    return tuple(found)


def _packed(product: AdaptedProduct, parts: Mapping[str, LowRank]) -> PackedDelta:
    given = [parts.get(module) for module in product.parts]
    halves = {part.down.dtype.itemsize for part in given if part is not None}
    if len(halves) > 1:  # one kernel reads all parts of a product
        given = [part if part is None else _wide(part) for part in given]
    return pack_delta(given, [source.rows for source in product.parts.values()], product.inputs)


def _wide(part: LowRank) -> LowRank:
    def numbers(values: Floats) -> Floats:
        if values.dtype != np.uint16:
            return values
        return (values.astype(np.uint32) << 16).view(np.float32)

    return LowRank(numbers(part.down), numbers(part.up), part.scale)


def _digest(parts: Mapping[str, LowRank], matrices: Mapping[str, Tensor]) -> str:
    """The hash of what is added or replaced: modules, scales and numbers. Names of folders and of training do not
    count."""
    state = blake3(b"baton adapter 1\n")
    for module in sorted(parts):
        part = parts[module]
        state.update(f"{module} {part.scale!r} {part.down.dtype} {part.down.shape} {part.up.shape}\n".encode())
        for values in (part.down, part.up):
            state.update(np.ascontiguousarray(values).view(np.uint8).data)
    for module in sorted(matrices):
        tensor = matrices[module]
        state.update(f"{module} whole {tensor.dtype} {tensor.shape}\n".encode())
        state.update(np.ascontiguousarray(tensor.values).view(np.uint8).data)
    return str(state.hexdigest())
