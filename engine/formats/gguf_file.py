"""Reads the header of a GGUF file, and its tensors as raw bytes over mapped memory.

Everything that a header says is checked before it is used: counts against what the file can hold, strings against their
limits, tensors against the file's end and each other. A damaged file causes an error that names file and field."""

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError

AGAIN = "The file is damaged or incomplete; copy or download it again."
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_TENSORS, _MOST_KEYS = 65_536, 65_536
_MOST_ITEMS = 1 << 21  # in all lists together: the largest vocabularies have half as many tokens, types and merges
_MOST_NAME, _MOST_TEXT, _MOST_HEADER = 65_535, 64 << 20, 256 << 20  # bytes
_MOST_DIMENSIONS = 4
_ALIGN = 32
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
# Numbers of the types that this reader knows, with the elements and bytes of a block.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18),
    39: ("MXFP4", 32, 17),
}  # fmt: skip
_OTHERS = {
    10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    kind: str  # a name of TYPES
    shape: tuple[int, ...]  # rows first, as numpy has it
    raw: NDArray[np.uint8]  # [rows, bytes of a row]; of a vector one row


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of the metadata, which must be of this type; without a default it must be there."""
        value = self.metadata.get(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is None and default is None:
            raise ModelError(self.path, key, "is missing", AGAIN)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(self.path, key, f"is {type(value).__name__}, not {kind.__name__}", AGAIN)
        return value


def read_gguf(path: Path) -> GgufFile:
    try:
        if not path.is_file():
            raise ModelError(path, "file", "is no regular file", "Name a GGUF file.")
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(path, "file", f"cannot be read ({error})", "Check that it is whole and readable.") from None
    reader = _Reader(path, data)
    if reader.bytes(4, "magic") != _MAGIC:
        raise ModelError(path, "magic", "is not GGUF", "Name a GGUF file, or a folder with safetensors.")
    version = reader.number("<I", "version")
    if version not in _VERSIONS:
        raise ModelError(path, "version", f"{version} is unknown", "Convert the file to GGUF version 3.")
    tensor_count = reader.count(_MOST_TENSORS, "tensor_count")
    key_count = reader.count(_MOST_KEYS, "metadata_kv_count")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.text("key of the metadata", _MOST_NAME)
        if key in metadata:
            raise ModelError(path, key, "stands twice in the metadata", AGAIN)
        metadata[key] = reader.value(reader.number("<I", f"type of {key}"), key)
    infos = [reader.tensor_info() for _ in range(tensor_count)]
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        remedy = "Join them with llama.cpp's llama-gguf-split --merge."
        raise ModelError(path, "split.count", f"the model is cut into {parts} files", remedy)
    align = metadata.get("general.alignment", _ALIGN)
    if not isinstance(align, int) or align < 1 or align & (align - 1) or align > 1 << 20:
        raise ModelError(path, "general.alignment", f"{align!r} is no power of two", AGAIN)
    base = -(-reader.at // align) * align
    return GgufFile(path, metadata, dict(_tensors(path, data, base, align, infos)))


_Info = tuple[str, tuple[int, ...], int, int]  # name, shape, type, offset


def _tensors(
    path: Path, data: mmap.mmap, base: int, align: int, infos: list[_Info]
) -> Iterator[tuple[str, GgufTensor]]:
    seen, before, end = set[str](), "", 0
    for name, shape, number, offset in sorted(infos, key=lambda info: info[3]):
        if name in seen:
            raise ModelError(path, name, "stands twice in the file", AGAIN)
        seen.add(name)
        if number not in TYPES:
            known = ", ".join(kind for kind, _, _ in TYPES.values())
            what = f"has type {_OTHERS.get(number, number)}, which Baton does not read"
            raise ModelError(path, name, what, f"Take a file whose tensors are {known}.")
        kind, block, size = TYPES[number]
        if shape[-1] % block:
            raise ModelError(
                path, name, f"has rows of {shape[-1]} elements, no whole blocks of {block} ({kind})", AGAIN
            )
        row, rows = shape[-1] // block * size, math.prod(shape[:-1])
        if offset % align or offset < end:
            raise ModelError(path, name, f"begins at byte {offset}, inside {before or 'the header'}", AGAIN)
        end, before = offset + rows * row, name
        if base + end > len(data):
            raise ModelError(path, name, f"ends at byte {base + end} of a file of {len(data)}", AGAIN)
        raw = np.frombuffer(data, np.uint8, rows * row, base + offset).reshape(rows, row)
        yield name, GgufTensor(name, kind, shape, raw)


class _Reader:
    """Reads values one after the other; what lies beyond the file's end is an error with the field's name."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.at, self._items = path, data, 0, 0

    def bytes(self, size: int, field: str) -> bytes:
        if size > len(self._data) - self.at:
            raise ModelError(self._path, field, f"ends beyond the file's {len(self._data)} bytes", AGAIN)
        if self.at + size > _MOST_HEADER:
            raise ModelError(self._path, field, f"ends behind the {_MOST_HEADER} bytes that a header may have", AGAIN)
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, form: str, field: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form), field))[0]

    def count(self, most: int, field: str) -> int:
        count: int = self.number("<Q", field)
        if count > most or count > len(self._data) - self.at:
            raise ModelError(self._path, field, f"{count} is more than {most}, or than the file can hold", AGAIN)
        return count

    def text(self, field: str, most: int = _MOST_TEXT) -> str:
        try:
            return self.bytes(self.count(most, f"length of {field}"), field).decode()
        except UnicodeDecodeError as error:
            raise ModelError(self._path, field, f"is not UTF-8 ({error})", AGAIN) from None

    def value(self, kind: int, field: str) -> Any:
        if kind == _TEXT:
            return self.text(field)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], field)
        if kind != _ARRAY:
            raise ModelError(self._path, field, f"has the unknown type {kind}", AGAIN)
        item = self.number("<I", f"type of {field}")
        count = self.count(_MOST_ITEMS - self._items, f"length of {field}")
        self._items += count
        if item == _TEXT:
            return self._texts(count, field)
        if item not in _SCALARS:
            raise ModelError(self._path, field, f"is a list of the unknown type {item}", AGAIN)
        raw = self.bytes(count * struct.calcsize(_SCALARS[item]), field)
        return np.frombuffer(raw, np.dtype(_SCALARS[item])).tolist()

    def _texts(self, count: int, field: str) -> list[str]:
        """The texts of a list. A vocabulary has hundreds of thousands, so each one that is in order takes one look."""
        found, end, length = list[str](), min(len(self._data), _MOST_HEADER), struct.Struct("<Q").unpack_from
        for _ in range(count):
            begin = self.at + 8
            size = length(self._data, self.at)[0] if begin <= end else end
            if size > min(_MOST_TEXT, end - begin):
                found.append(self.text(field))  # it raises the error that names what is wrong
                continue
            self.at = begin + size
            try:
                found.append(self._data[begin : self.at].decode())
            except UnicodeDecodeError as error:
                raise ModelError(self._path, field, f"is not UTF-8 ({error})", AGAIN) from None
        return found

    def tensor_info(self) -> _Info:
        name = self.text("name of a tensor", _MOST_NAME)
        dimensions = self.number("<I", f"dimensions of {name}")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ModelError(self._path, name, f"has {dimensions} dimensions", AGAIN)
        sides = tuple(self.number("<Q", f"shape of {name}") for _ in range(dimensions))
        if any(not 1 <= side <= len(self._data) * 32 for side in sides):
            raise ModelError(self._path, name, f"has the shape {sides} in a file of {len(self._data)} bytes", AGAIN)
        return name, sides[::-1], self.number("<I", f"type of {name}"), self.number("<Q", f"offset of {name}")
