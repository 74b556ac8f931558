"""Writes folders of quantized safetensors for tests, element by element."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from engine.formats.checkpoint import Checkpoint

Array = np.ndarray
NAMES = {
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
}


def write(folder: Path, tensors: dict[str, Array], settings: dict[str, Any], fp8: tuple[str, ...] = ()) -> Checkpoint:
    folder.mkdir(parents=True, exist_ok=True)
    header, body = {}, b""
    for name, values in tensors.items():
        kind = "F8_E4M3" if name in fp8 else NAMES[str(values.dtype)]
        places = [len(body), len(body) + values.nbytes]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": places}
        body += np.ascontiguousarray(values).tobytes()
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + body)
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return Checkpoint(folder)


def words(numbers: Array, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Array:
    """Packs unsigned numbers along an axis into int32, one after the other."""
    per = 32 // bits
    moved = np.moveaxis(numbers, axis, -1)
    packed = np.zeros((*moved.shape[:-1], moved.shape[-1] // per), np.uint32)
    for word in range(packed.shape[-1]):
        for place in range(per):
            source = order[place] if order else place
            packed[..., word] |= moved[..., word * per + source].astype(np.uint32) << np.uint32(bits * place)
    return np.moveaxis(packed, -1, axis).view(np.int32)
