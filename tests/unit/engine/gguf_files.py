"""Writes GGUF files for tests: a header, and tensors as bytes."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

TEXT, ARRAY, UINT32, INT32, FLOAT32, BOOL = 8, 9, 4, 5, 6, 7
KINDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "BF16": 30,
}  # fmt: skip
ALIGN = 32

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]  # kind, shape with rows first, contents


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    at, body = 0, b""
    for name, (kind, shape, raw) in tensors.items():
        sides = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += _text(name) + struct.pack("<I", len(shape)) + sides + struct.pack("<IQ", KINDS[kind], at)
        body += raw + bytes(-len(raw) % ALIGN)
        at = len(body)
    return head + bytes(-len(head) % ALIGN) + body


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Tensors) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def reordered(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of llama's queries or keys as llama.cpp wants them."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", TEXT) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(_text, value))
        case [int(), *_]:
            return struct.pack("<IIQ", ARRAY, INT32, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", ARRAY, FLOAT32, len(value)) + struct.pack(f"<{len(value)}f", *value)
