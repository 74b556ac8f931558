"""The hash of a model: the identity under which a host keeps packed weights, and by which workers compare themselves.

Equal models have equal hashes, however their files are cut and spelled. Quantized matrices are equal when their bytes
are and when these bytes are read in the same way: they stand for other numbers in another version of GPTQ."""

from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from engine.formats.checkpoint import checkpoint_files
from engine.formats.errors import ModelError
from engine.formats.stored import MadeMatrix, Stored, StoredMatrix, Tensor, WidenedMatrix, is_quantized, widened
from engine.model.config import ModelConfig
from engine.model.digest import remembered

_LOOK = 1 << 16  # numbers that are looked at together, which the processor's cache holds
# For each dtype: its bits as whole numbers with and without a sign, and infinity's. Above it there is only NaN.
_BITS: dict[str, tuple[type[np.signedinteger[Any]], type[np.unsignedinteger[Any]], int]] = {
    "bf16": (np.int16, np.uint16, 0x7F80),
    "fp16": (np.int16, np.uint16, 0x7C00),
    "fp32": (np.int32, np.uint32, 0x7F800000),
}


def hash_model(folder: Path, config: ModelConfig, tensors: dict[str, Stored], cache: Path) -> str:
    """A hash of the configuration's meaning and of all tensors by name. Sharding and spelling do not change it. Each
    number is looked at here, once per file and not at every start: ModelError where one is not finite."""

    def compute() -> str:
        state = blake3(config.canonical(), max_threads=blake3.AUTO)
        for name in sorted(tensors):
            tensor = tensors[name]
            added = f" with {tensor.added}" if isinstance(tensor, Tensor) and tensor.added else ""
            state.update(f"\n{name} {tensor.dtype} {tensor.shape}{added}\n".encode())
            if isinstance(tensor, Tensor | MadeMatrix):
                for source in tensor.sources if isinstance(tensor, MadeMatrix) else (tensor,):
                    refuse_not_finite(name, source)
                    state.update(np.ascontiguousarray(source.values).view(np.uint8).data)
                continue
            state.update(_way_of_reading(tensor).encode())
            for raw in tensor.raw:
                state.update(np.ascontiguousarray(raw).view(np.uint8).data)
        return state.hexdigest()

    # Hashes of quantized models that older versions remember do not say how the bytes are read.
    kind = "read" if any(is_quantized(tensor) for tensor in tensors.values()) else "finite"
    purpose = f"{kind}-model-{config.digest()}"
    return remembered((folder / "config.json", *checkpoint_files(folder)), cache, purpose, compute)


def refuse_not_finite(name: str, tensor: Tensor) -> None:
    """Raises ModelError when a weight is NaN or infinite: such a model answers nothing but noise."""
    flat = tensor.values.reshape(-1)
    signed, unsigned, infinity = _BITS[tensor.dtype]
    minus = infinity + np.iinfo(signed).max + 1
    for first in range(0, len(flat), _LOOK):
        part = flat[first : first + _LOOK]
        if part.view(signed).max() >= infinity or part.view(unsigned).max() >= minus:
            value = widened(Tensor(tensor.path, tensor.dtype, part))
            at = first + int(np.flatnonzero(~np.isfinite(value))[0])
            place = [int(index) for index in np.unravel_index(at, tensor.shape)]
            remedy = "The checkpoint is damaged or its training has diverged; take another one."
            raise ModelError(tensor.path, name, f"is {value[at - first]} at {place}", remedy)


def _way_of_reading(matrix: StoredMatrix | WidenedMatrix) -> str:
    """The form and settings that decide, beside its bytes, which numbers a quantized matrix has."""
    form = matrix.form if isinstance(matrix, StoredMatrix) else "widened"
    arrays = [f"{raw.dtype} {raw.shape}" for raw in matrix.raw]
    return f"{form} {matrix.reading} {arrays}\n"
