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

    def sides(self, part: str) -> tuple[int, int]:
        """Rows and columns of a part that has to be a matrix."""
        tensor = self.parts.get(part)
        if tensor is None or len(tensor.shape) != 2 or 0 in tensor.shape:
            problem = "is missing" if tensor is None else f"has shape {list(tensor.shape)}, and is no matrix"
            raise ModelError(self.path if tensor is None else tensor.path, f"{self.name}.{part}", problem, AGAIN)
        return tensor.shape[0], tensor.shape[1]

    def refuse_owners(self, part: str, owner: NDArray[np.signedinteger[Any]], groups: int, each: int) -> None:
        """Raises ModelError unless each group owns so many inputs."""
        if owner.min() < 0 or owner.max() >= groups or (np.bincount(owner, minlength=groups) != each).any():
            raise ModelError(self.path, f"{self.name}.{part}", f"gives {groups} groups unequal shares", AGAIN)

    def raw(self) -> tuple[NDArray[Any], ...]:
        return tuple(self.parts[part].values for part in sorted(self.parts))


def modules(tensors: dict[str, Tensor], marks: Iterable[str]) -> Iterator[Module]:
    """The modules that have a part with one of these names."""
    known, found = set(marks), dict[str, dict[str, Tensor]]()
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        found.setdefault(module, {})[part] = tensor
    for module in sorted(found):
        if module and known & found[module].keys():
            yield Module(module, found[module])


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
