"""The tensors of a model folder: safetensors, one file or sharded, as numpy views over mapped memory; or GGUF.

It serves packing and hashing, once per host. Headers are checked completely before any tensor is touched: a truncated
or damaged file causes an error that names it, never a wrong number. bf16 values come as uint16."""

import copy
import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_checkpoint import gguf_tensors
from engine.formats.quantized import quantization_of, read_quantized
from engine.formats.stored import Stored, Tensor
from mesh.config.model_folder import why_no_weights
from mesh.config.small_files import read_small

Array = NDArray[Any]
DTYPES: dict[str, tuple[str, type[np.generic]]] = {
    "F32": ("fp32", np.float32),
    "F16": ("fp16", np.float16),
    "BF16": ("bf16", np.uint16),
    # Parts of quantized matrices:
    "F8_E4M3": ("f8_e4m3", np.uint8),
    "I8": ("i8", np.int8),
    "U8": ("u8", np.uint8),
    "I32": ("i32", np.int32),
    "I64": ("i64", np.int64),
}
NUMBERS = ("fp32", "fp16", "bf16")  # dtypes of weights that are not quantized
_AGAIN = "The file is damaged or incomplete; copy or download it again."
_INDEX, GGUF = "model.safetensors.index.json", "model.gguf"
_MOST_TENSORS = 100_000  # tensors in one file, at most
_HEADER_LIMIT = 32 << 20  # bytes, enough for so many; the format allows 100 MB, which take gigabytes when they are read


class Checkpoint:
    """All tensors of a folder by name."""

    def __init__(self, folder: Path) -> None:
        self.files = checkpoint_files(folder)
        self.index = folder / _INDEX if len(self.files) > 1 else self.files[0]
        self.tensors: dict[str, Stored] = {}
        for path in self.files:
            for name, tensor in (gguf_tensors(path) if path.suffix == ".gguf" else read_file(path)).items():
                if name in self.tensors:
                    raise ModelError(path, name, f"stands also in {self.tensors[name].path.name}", _AGAIN)
                self.tensors[name] = tensor
        if (settings := quantization_of(folder)) is not None and self.files[0].suffix != ".gguf":
            dense = {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, Tensor)}
            self.tensors = read_quantized(folder, settings, dense)

    def holding(self, tensors: dict[str, Stored]) -> "Checkpoint":
        """The same files, with these tensors."""
        other = copy.copy(self)
        other.tensors = tensors
        return other

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(self.index, name, "tensor is missing", "Check config.json against the checkpoint.")
        if isinstance(tensor, Tensor) and tensor.dtype not in NUMBERS:
            remedy = "Use the checkpoint in bf16, fp16 or fp32, or one whose quantization_config says what this is."
            raise ModelError(tensor.path, name, f"has dtype {tensor.dtype}", remedy)
        if tensor.shape != shape:
            remedy = "config.json and the checkpoint do not belong together; copy both again."
            raise ModelError(tensor.path, name, f"has shape {list(tensor.shape)} instead of {list(shape)}", remedy)
        return tensor


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The files in order: model.safetensors, else all shards that the index names. An index beside model.safetensors
    is left over from before the shards were joined; transformers does not read it either."""
    index, single = folder / _INDEX, folder / "model.safetensors"
    if single.exists():
        return (_regular(single),)
    if (gguf := folder / GGUF).exists():
        return (_regular(gguf),)
    if not index.is_file():
        raise ModelError(single, "file", *why_no_weights(folder))
    try:
        names = sorted(set(json.loads(read_small(index, _HEADER_LIMIT))["weight_map"].values()))
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(index, "weight_map", f"cannot be read ({error!r})", _AGAIN) from None
    for name in names:
        if not isinstance(name, str) or "/" in name or not (folder / name).is_file():
            raise ModelError(folder / str(name), "file", f"does not exist but {index.name} names it", _AGAIN)
    if not names:
        raise ModelError(index, "weight_map", "is empty", _AGAIN)
    return tuple(folder / name for name in names)


def _regular(path: Path) -> Path:
    """The path, unless opening it could wait for ever: a pipe or a device under the name of a file."""
    if not path.is_file():
        raise ModelError(path, "file", "is no regular file", "Copy the file itself into the folder.")
    return path


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file by name."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise ModelError(path, "file", f"has {size} bytes only", _AGAIN)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(path, "file", f"cannot be read ({error})", "Check its permissions.") from None
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(size - 8, _HEADER_LIMIT):
        limit = f" where at most {_HEADER_LIMIT} are read" if length <= size - 8 else ""
        raise ModelError(path, "header", f"says it is {length} bytes long in a file of {size}{limit}", _AGAIN)
    raw = data[8 : 8 + length]
    _refuse_many(path, raw.count(b'"data_offsets"'))  # before they are read, which takes seconds
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(path, "header", f"is not JSON ({error})", _AGAIN) from None
    if not isinstance(header, dict):
        raise ModelError(path, "header", "is not a JSON object", _AGAIN)
    _refuse_many(path, len(header))
    header.pop("__metadata__", None)
    return _views(path, data, 8 + length, header)


def _refuse_many(path: Path, tensors: int) -> None:
    if tensors > _MOST_TENSORS:
        remedy = "No model that Baton serves has so many; take another checkpoint."
        raise ModelError(path, "header", f"names {tensors} tensors, more than {_MOST_TENSORS}", remedy)


def _views(path: Path, data: mmap.mmap, base: int, header: dict[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    end = 0  # tensors follow each other without holes; the last one ends where the file ends
    for name, (begin, stop, dtype, shape) in sorted(_entries(path, header).items(), key=lambda item: item[1][:2]):
        label, kind = DTYPES[dtype]
        bytes_needed = math.prod(shape) * np.dtype(kind).itemsize
        if begin != end or stop - begin != bytes_needed:
            raise ModelError(path, name, f"stands at {begin}..{stop}, {bytes_needed} bytes from {end} expected", _AGAIN)
        if base + stop > len(data):
            raise ModelError(path, name, f"ends at byte {base + stop} of a file of {len(data)}", _AGAIN)
        values = np.frombuffer(data, kind, math.prod(shape), base + begin).reshape(shape)
        tensors[name] = Tensor(path, label, values)
        end = stop
    if base + end != len(data):
        raise ModelError(path, "file", f"has {len(data)} bytes, its header describes {base + end}", _AGAIN)
    return tensors


def _entries(path: Path, header: dict[str, Any]) -> dict[str, tuple[int, int, str, tuple[int, ...]]]:
    entries: dict[str, tuple[int, int, str, tuple[int, ...]]] = {}
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(stop)]} if all(
                type(side) is int and side >= 0 for side in shape
            ):
                if dtype not in DTYPES:
                    remedy = "Use the checkpoint in bf16, fp16 or fp32."
                    raise ModelError(path, name, f"has dtype {dtype}", remedy)
                entries[name] = (begin, stop, dtype, tuple(shape))
            case _:
                raise ModelError(path, name, "has no valid dtype, shape and data_offsets", _AGAIN)
    return entries
