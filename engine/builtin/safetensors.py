"""Writes safetensors files from arrays that are made one after the other, so a file of any size needs little memory.

Values come as fp32 and are stored in the requested dtype, rounded to nearest even."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_NAMES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_CHUNK = 1 << 22  # values at once

Fill = Callable[[str, tuple[int, ...], int, int], Floats]  # (name, shape, first, count) -> values first..first + count


def write_safetensors(path: Path, dtype: str, shapes: dict[str, tuple[int, ...]], fill: Fill) -> int:
    """Writes the tensors in the order given; returns their bytes."""
    width = 4 if dtype == "fp32" else 2
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * width
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, shape in shapes.items():
            size = math.prod(shape)
            for first in range(0, size, _CHUNK):
                file.write(stored(fill(name, shape, first, min(_CHUNK, size - first)), dtype).tobytes())
    return end


def stored(values: Floats, dtype: str) -> NDArray[np.generic]:
    if dtype == "fp32":
        return values
    if dtype == "fp16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
