"""MXFP4: blocks of 32 numbers in four bits (e2m1), with one power of two as their scale.

Twice the numbers are integers. Folders of gpt-oss have two tensors for a matrix of all experts of a layer:
`NAME_blocks` [experts, outputs, blocks, 16], two numbers in each byte, and `NAME_scales` [experts, outputs, blocks].
They are read as one matrix for each expert, in these bits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.formats.errors import ModelError
from engine.formats.parts import AGAIN
from engine.formats.stored import Stored, StoredMatrix, Tensor

BLOCK = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)  # by the lower three bits of a nibble; the fourth is the sign
MXFP4 = MatrixForm("int4-groups", group=BLOCK, scales="bf16", table=(*_DOUBLED, *(-each for each in _DOUBLED)))
_BLOCKS, _SCALES = "_blocks", "_scales"
_MOST = 252  # exponent with which every number is finite


def halved_powers(exponents: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """2^(exponent - 128) in bf16, for numbers that are twice as large; exact for every exponent, also below the least
    normal number."""
    wide = exponents.astype(np.uint16)
    return np.where(wide < 2, np.uint16(0x20) << wide, np.maximum(wide, 1) - 1 << 7).astype(np.uint16)


def mxfp4_matrix(
    path: Path, name: str, dtype: str, packed: NDArray[np.uint8], exponents: NDArray[np.uint8]
) -> StoredMatrix:
    """A matrix of bytes [outputs, inputs / 2], whose low nibbles are the first of two numbers, and exponents [outputs,
    inputs / 32]. `name`: of the tensor with the exponents."""
    n, k = packed.shape[0], 2 * packed.shape[1]

    def read() -> Integers:
        if (most := int(exponents.max())) > _MOST:
            problem = f"has the exponent {most}, with which numbers are not finite"
            raise ModelError(path, name, problem, "The checkpoint is damaged; take another one.")
        nibbles = np.stack([packed & 15, packed >> 4], axis=2).reshape(n, k)
        return Integers(MXFP4, nibbles.astype(np.int8), halved_powers(exponents))

    return StoredMatrix(path, dtype, (n, k), MXFP4, (packed, exponents), read)


def read_mxfp4(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    """`EXPERTS.NAME_blocks` and its scales become `EXPERTS.NUMBER.NAME.weight`, one for each expert."""
    found: dict[str, Stored] = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(_BLOCKS):
            continue
        stem = name.removesuffix(_BLOCKS)
        experts, _, part = stem.rpartition(".")
        scales = _scales_of(blocks, name, tensors.get(stem + _SCALES), stem + _SCALES)
        del found[name], found[stem + _SCALES]
        for number, (packed, exponents) in enumerate(zip(blocks.values, scales, strict=True)):
            rows = packed.reshape(len(packed), -1)
            matrix = mxfp4_matrix(blocks.path, stem + _SCALES, "mxfp4", rows, exponents)
            found[f"{experts}.{number}.{part}.weight"] = matrix
    return found


def _scales_of(blocks: Tensor, blocks_name: str, scales: Tensor | None, name: str) -> NDArray[np.uint8]:
    if blocks.dtype != "u8" or len(blocks.shape) != 4 or blocks.shape[-1] != BLOCK // 2 or 0 in blocks.shape:
        problem = f"is {blocks.dtype} {list(blocks.shape)} instead of u8 [experts, outputs, blocks, {BLOCK // 2}]"
        raise ModelError(blocks.path, blocks_name, problem, AGAIN)
    if scales is None:
        raise ModelError(blocks.path, name, "tensor is missing", AGAIN)
    if scales.dtype != "u8" or scales.shape != blocks.shape[:3]:
        problem = f"is {scales.dtype} {list(scales.shape)} instead of u8 {list(blocks.shape[:3])}"
        raise ModelError(scales.path, name, problem, AGAIN)
    return scales.values
