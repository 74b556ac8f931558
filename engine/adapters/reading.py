"""From a PEFT folder to an adapter that is ready to compute with: read, checked against the model, hashed, packed.

An adapter that names a module which the model lacks is refused, whatever it names besides: without that module the
answers would be those of another model. The hash is of what is added to the model, so folders with equal tensors and
scales have equal ones, and every worker of a mesh finds the same."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from blake3 import blake3

from baton_kernels.deltas import PRODUCTS, LowRank, PackedDelta, pack_delta
from engine.adapters.modules import AdaptedProduct, adapted_products
from engine.adapters.peft_settings import CONFIG, MOST_RANK, PeftSettings
from engine.formats.checkpoint import NUMBERS, read_file
from engine.formats.errors import ModelError
from engine.formats.stored import Tensor, widened
from engine.model.config import ModelConfig
from engine.model.layout import TensorSource
from engine.model.weights import Floats, refuse_not_finite, row_order
from engine.step.adapted import AdapterWeights

TENSORS = "adapter_model.safetensors"
_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_OTHER_MODEL = "The adapter was trained on another model; name one that was trained on this model."
_AGAIN = "The folder is damaged or incomplete; copy or download it again."


def read_adapter(folder: Path, model: ModelConfig, *, most_rank: int = MOST_RANK) -> AdapterWeights:
    """The adapter in this folder. ModelError names the file, the field or tensor, and what to do."""
    settings, tensors = PeftSettings.of(folder), _tensors(folder)
    products = adapted_products(model)
    known = {module for product in products for module in product.parts}
    given = _by_module(folder, tensors, known)
    _check_targets(settings, known, set(given))
    parts = {
        module: _part(settings, module, product.parts[module], given[module], model, most_rank)
        for product in products
        for module in product.parts
        if module in given
    }
    deltas = [None] * (model.layers * len(PRODUCTS))
    packed = {product.index: product for product in products if product.parts.keys() & parts.keys()}
    return AdapterWeights(
        digest=_digest(parts),
        deltas=tuple(_packed(packed[i], parts) if i in packed else each for i, each in enumerate(deltas)),
        rank=max(len(part.down) for part in parts.values()),
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
    raise ModelError(path, "file", "is missing", f"Name a PEFT folder with {CONFIG} and {TENSORS}.")


def _by_module(folder: Path, tensors: Mapping[str, Tensor], known: set[str]) -> dict[str, dict[str, Tensor]]:
    """A and B of each module, by the ending of their names."""
    found = dict[str, dict[str, Tensor]]()
    for name, tensor in tensors.items():
        ending = next((each for each in (_DOWN, _UP) if name.endswith(each)), None)
        module = name.removeprefix(_PREFIX).removesuffix(ending or "")
        if ending is None:
            raise ModelError(tensor.path, name, "is neither lora_A nor lora_B of a module", _OTHER_MODEL)
        if module not in known:
            problem = f"belongs to {module}, which the model lacks or in which no adapter is computed"
            raise ModelError(tensor.path, name, problem, _OTHER_MODEL)
        found.setdefault(module, {})[ending] = tensor
    if not found:
        raise ModelError(folder / TENSORS, "file", "holds no tensors", _AGAIN)
    for module, pair in found.items():
        if len(pair) < 2:
            raise ModelError(folder / TENSORS, module, "has one of lora_A and lora_B only", _AGAIN)
    return found


def _check_targets(settings: PeftSettings, known: set[str], given: set[str]) -> None:
    """Every module that the configuration lists is in the model, and the file has tensors of it."""
    for target in settings.targets:
        if not any(_ends(module, target) for module in known):
            problem = f"{target!r} is no module of the model in which an adapter is computed"
            raise ModelError(settings.path, "target_modules", problem, _OTHER_MODEL)
        if not any(_ends(module, target) for module in given):
            raise ModelError(settings.path, "target_modules", f"{TENSORS} has no tensors of {target!r}", _AGAIN)


def _ends(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _part(
    settings: PeftSettings,
    module: str,
    source: TensorSource,
    pair: Mapping[str, Tensor],
    model: ModelConfig,
    most_rank: int,
) -> LowRank:
    rank, dtype = settings.rank_of(module), pair[_DOWN].dtype
    if rank > most_rank:
        limit = "that Baton computes" if most_rank == MOST_RANK else "that max_lora_rank allows"
        remedy = "Train one of a smaller rank." if most_rank == MOST_RANK else f"Raise it, to {MOST_RANK} at most."
        raise ModelError(settings.path, "r", f"{module} has rank {rank}, more than the {most_rank} {limit}", remedy)
    for ending, shape in ((_DOWN, (rank, source.columns)), (_UP, (source.rows, rank))):
        tensor, name = pair[ending], f"{module}{ending}"
        if tensor.shape != shape:
            problem = f"has shape {list(tensor.shape)}; rank and model say {list(shape)}"
            raise ModelError(tensor.path, name, problem, _OTHER_MODEL)
        if tensor.dtype not in NUMBERS:
            raise ModelError(tensor.path, name, f"has dtype {tensor.dtype}", "Save the adapter in bf16, fp16 or fp32.")
        refuse_not_finite(name, tensor)
    half = dtype == "bf16" and pair[_UP].dtype == "bf16"
    down, up = (pair[each].values if half else widened(pair[each]) for each in (_DOWN, _UP))
    order = row_order(model, source)
    return LowRank(
        np.ascontiguousarray(down), np.ascontiguousarray(up if order is None else up[order]), settings.scale_of(module)
    )


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


def _digest(parts: Mapping[str, LowRank]) -> str:
    """The hash of what is added: modules, scales and numbers. Names of folders and of training do not count."""
    state = blake3(b"baton adapter 1\n")
    for module in sorted(parts):
        part = parts[module]
        state.update(f"{module} {part.scale!r} {part.down.dtype} {part.down.shape} {part.up.shape}\n".encode())
        for values in (part.down, part.up):
            state.update(np.ascontiguousarray(values).view(np.uint8).data)
    return str(state.hexdigest())
