"""The value that a checkpoint holds under a name: numbers, or a matrix that is quantized there.

The form of a quantized matrix is known from headers; its numbers are read when it is packed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm


@dataclass(frozen=True, slots=True)
class Tensor:
    path: Path  # the file it stands in
    dtype: str  # fp32 | fp16 | bf16
    values: NDArray[Any]  # bf16 as uint16
    added: float = 0.0  # what the values contain already of the number that the family adds to each

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def size(self) -> int:
        return self.values.size


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    path: Path  # the file it stands in
    dtype: str  # the format's name for its numbers
    shape: tuple[int, int]  # outputs and inputs
    form: MatrixForm
    raw: tuple[NDArray[Any], ...]  # all its bytes in the file, of which its hash is made
    read: Callable[[], Integers]
    reading: str = ""  # settings of the checkpoint beside `raw` that decide its numbers

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True, slots=True)
class WidenedMatrix:
    """A quantized matrix that has no integer form: products take its numbers, rounded to bf16."""

    path: Path
    dtype: str
    shape: tuple[int, int]
    raw: tuple[NDArray[Any], ...]
    rows: Callable[[int, int], NDArray[np.float32]]
    reading: str = ""  # settings of the checkpoint beside `raw` that decide its numbers

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True, slots=True)
class MadeMatrix:
    """A matrix that is made of others in the checkpoint, when it is packed."""

    sources: tuple[Tensor, ...]
    shape: tuple[int, int]
    read: Callable[[], NDArray[np.float32]]

    @property
    def path(self) -> Path:
        return self.sources[0].path

    @property
    def dtype(self) -> str:
        return self.sources[0].dtype

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


Stored = Tensor | StoredMatrix | WidenedMatrix | MadeMatrix


def is_quantized(stored: Stored) -> bool:
    """Whether the checkpoint holds the matrix in fewer bits than its numbers have."""
    return isinstance(stored, StoredMatrix | WidenedMatrix)


def widened(tensor: Tensor) -> NDArray[np.float32]:
    """The same numbers in fp32, exactly."""
    if tensor.dtype == "bf16":
        return (tensor.values.astype(np.uint32) << 16).view(np.float32)
    return tensor.values.astype(np.float32)
