"""The tensors of a GGUF file as a checkpoint: vectors and dense matrices as numbers, the others in integer forms."""

from pathlib import Path

import numpy as np

from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.gguf_file import GgufTensor, read_gguf
from engine.formats.gguf_names import named, rows_of
from engine.formats.stored import Stored, StoredMatrix, Tensor

_DENSE = {"F32": ("fp32", np.float32), "F16": ("fp16", np.float16), "BF16": ("bf16", np.uint16)}


def gguf_tensors(path: Path) -> dict[str, Stored]:
    """By Hugging Face's names."""
    file = read_gguf(path)
    return {name: _opened(path, file.tensors[stored], rows_of(file, stored, len(file.tensors[stored].raw)))
            for stored, name in named(file)}  # fmt: skip


def _opened(path: Path, tensor: GgufTensor, rows: "np.ndarray[tuple[int], np.dtype[np.int64]] | None") -> Stored:
    raw = tensor.raw
    if tensor.kind in _DENSE:
        dtype, kind = _DENSE[tensor.kind]
        values = raw.reshape(-1).view(kind).reshape(tensor.shape)
        return Tensor(path, dtype, values if rows is None else values[rows])
    blocks = BLOCK_TYPES[tensor.kind]
    return StoredMatrix(
        path,
        tensor.kind.lower(),
        (tensor.shape[0], tensor.shape[1]),
        blocks.form,
        (raw,),
        lambda: blocks.integers(raw if rows is None else raw[rows]),
    )
