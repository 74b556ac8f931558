"""Takes a folder's quantized tensors apart: the modules they belong to, their parts by name, and packed bits.

A module is what a checkpoint names before the last dot, such as model.layers.0.mlp.up_proj; a quantized one has several
tensors instead of one `weight`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.stored import Tensor

AGAIN = "The folder is damaged, or of a newer version of its tool; copy it again."


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of one module, by what follows its name."""

    name: str
    parts: dict[str, Tensor]

    @property
    def path(self) -> Path:
        return next(iter(self.parts.values())).path

    def take(self, part: str, dtypes: Iterable[str], shape: tuple[int | None, ...]) -> NDArray[Any]:
        """A part of one of these dtypes and this shape; None stands for any length."""
        tensor = self.parts.get(part)
        if tensor is None:
            raise ModelError(self.path, f"{self.name}.{part}", "tensor is missing", AGAIN)
        fits = len(shape) == len(tensor.shape) and all(w in (None, s) for w, s in zip(shape, tensor.shape, strict=True))
        if tensor.dtype not in dtypes or not fits:
            wanted = f"{' or '.join(dtypes)} {list(shape)}"
            problem = f"is {tensor.dtype} {list(tensor.shape)} instead of {wanted}"
            raise ModelError(tensor.path, f"{self.name}.{part}", problem, AGAIN)
        return tensor.values

    def raw(self) -> tuple[NDArray[Any], ...]:
        return tuple(self.parts[part].values for part in sorted(self.parts))


def modules(tensors: dict[str, Tensor], marks: Iterable[str]) -> Iterator[Module]:
    """The modules that have a part with one of these names."""
    known = set(marks)
    found = sorted({name.rpartition(".")[0] for name in tensors if name.rpartition(".")[2] in known})
    for module in found:
        prefix = f"{module}."
        parts = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        yield Module(module, parts)


def unpacked(words: NDArray[np.int32], bits: int, axis: int) -> NDArray[np.uint8]:
    """Numbers of 4 or 8 bits that lie in int32 words along this axis, the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    wide = np.moveaxis(words.view(np.uint32), axis, -1)
    numbers = (wide[..., None] >> shifts & np.uint32(2**bits - 1)).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(numbers.reshape(*wide.shape[:-1], -1), -1, axis))


def scale_type(tensor: Tensor) -> str:
    """The form's name for the dtype of scales."""
    return {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}[tensor.dtype]


DTYPES_OF_SCALES = ("fp32", "fp16", "bf16")
