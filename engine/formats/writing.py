"""Writes safetensors files: from arrays that are made one after the other, so that a file of any size needs little
memory, or from arrays that are there."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_NAMES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "i8": "I8", "i32": "I32", "i64": "I64"}
_CHUNK = 1 << 22  # values at once

Fill = Callable[[str, tuple[int, ...], int, int], Floats]  # (name, shape, first, count) -> values first..first + count


def write_safetensors(path: Path, dtype: str, shapes: dict[str, tuple[int, ...]], fill: Fill) -> int:
    """Writes the tensors in the order given, their fp32 values rounded to the dtype; returns their bytes."""
    width = 4 if dtype == "fp32" else 2
    header, end = _header({name: (dtype, shape, math.prod(shape) * width) for name, shape in shapes.items()})
    with path.open("wb") as file:
        file.write(header)
        for name, shape in shapes.items():
            size = math.prod(shape)
            for first in range(0, size, _CHUNK):
                file.write(stored(fill(name, shape, first, min(_CHUNK, size - first)), dtype).tobytes())
    return end


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, NDArray[Any]]]) -> int:
    """Writes arrays under these dtypes, whose bytes they have already; returns their bytes."""
    header, end = _header({name: (dtype, array.shape, array.nbytes) for name, (dtype, array) in tensors.items()})
    with path.open("wb") as file:
        file.write(header)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    return end


def stored(values: Floats, dtype: str) -> NDArray[np.generic]:
    """The values rounded to nearest even."""
    if dtype == "fp32":
        return values
    if dtype == "fp16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> tuple[bytes, int]:
    """The header of a file with these dtypes, shapes and bytes, and all their bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        begin, end = end, end + size
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw, end
