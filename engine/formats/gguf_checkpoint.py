"""The tensors of a GGUF file as a checkpoint: vectors and dense matrices as numbers, the others in integer forms."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.gguf_families import EXPERT, family_of
from engine.formats.gguf_file import AGAIN, GgufTensor, read_gguf
from engine.formats.gguf_names import named, rows_of
from engine.formats.stored import Stored, StoredMatrix, Tensor

_DENSE = {"F32": ("fp32", np.float32), "F16": ("fp16", np.float16), "BF16": ("bf16", np.uint16)}
_NORM, _ROW = "norm.weight", "shared_expert_gate.weight"


def gguf_tensors(path: Path) -> dict[str, Stored]:
    """By Hugging Face's names: matrices of experts have a tensor each."""
    file = read_gguf(path)
    added = family_of(file).norms_added
    found = dict[str, Stored]()
    for stored, name in named(file):
        tensor = file.tensors[stored]
        if EXPERT in name:
            found |= {one: _opened(path, each, None) for one, each in _taken_apart(path, name, tensor)}
            continue
        if name.endswith(_ROW) and len(tensor.shape) == 1:  # the file has left the side of length 1 out
            tensor = replace(tensor, shape=(1, *tensor.shape))
        opened = _opened(path, tensor, rows_of(file, stored, tensor.shape[0]))
        if added and name.endswith(_NORM) and isinstance(opened, Tensor):
            opened = replace(opened, added=added)
        if name in found:
            raise ModelError(path, stored, f"stands twice in the file, as {name}", AGAIN)
        found[name] = opened
    return found


def _taken_apart(path: Path, name: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """The matrix of each expert under its name."""
    if len(tensor.shape) != 3:
        raise ModelError(path, tensor.name, f"has the shape {list(tensor.shape)}, and no matrix per expert", AGAIN)
    experts, rows, _ = tensor.shape
    for expert in range(experts):
        raw = tensor.raw[expert * rows : (expert + 1) * rows]
        yield name.replace(EXPERT, str(expert)), replace(tensor, shape=tensor.shape[1:], raw=raw)


def _opened(path: Path, tensor: GgufTensor, rows: NDArray[np.int64] | None) -> Stored:
    raw = tensor.raw
    if tensor.kind in _DENSE:
        dtype, kind = _DENSE[tensor.kind]
        values = raw.reshape(-1).view(kind).reshape(tensor.shape)
        return Tensor(path, dtype, values if rows is None else values[rows])
    if len(tensor.shape) != 2:
        raise ModelError(path, tensor.name, f"is {tensor.kind} of the shape {list(tensor.shape)}, no matrix", AGAIN)
    blocks = BLOCK_TYPES[tensor.kind]
    return StoredMatrix(
        path,
        tensor.kind.lower(),
        (tensor.shape[0], tensor.shape[1]),
        blocks.form,
        (raw,),
        lambda: blocks.integers(raw if rows is None else raw[rows]),
        "" if rows is None else "rows are in the order of llama.cpp",
    )
