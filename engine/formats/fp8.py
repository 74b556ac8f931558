"""FP8 checkpoints: e4m3 weights with a scale per tensor, output or block of 128 x 128. They are widened to bf16.

A processor multiplies no fp8, so such a matrix takes the product path of bf16 weights: each weight times its scale,
rounded once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.parts import DTYPES_OF_SCALES, Module, modules
from engine.formats.stored import Stored, Tensor, WidenedMatrix, widened

_SCALES = ("weight_scale", "weight_scale_inv")  # both are multiplied


def read_fp8(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    block = block_of(config, "weight_block_size", settings.get("weight_block_size"))
    found: dict[str, Stored] = dict(tensors)
    for module in modules(tensors, _SCALES):
        for part in (*_SCALES, "input_scale", "activation_scale"):
            found.pop(f"{module.name}.{part}", None)
        found[f"{module.name}.weight"] = fp8_matrix(module, block)
    return found


def block_of(config: Path, field: str, block: Any) -> list[int] | None:
    """Rows and columns of a block, as this field of quantization_config has them; None: there are no blocks."""
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        problem = f"{field} {block!r} is no pair of lengths"
        raise ModelError(config, "quantization_config", problem, "Copy the folder again.")
    return block


def fp8_matrix(module: Module, block: list[int] | None) -> WidenedMatrix:
    """`block`: rows and columns that have one scale, the last ones fewer; None: the folder has no blocks."""
    n, k = module.sides("weight")
    weight = module.take("weight", ("f8_e4m3",), (n, k))
    name = next(name for name in _SCALES if name in module.parts)
    stored = module.parts[name]
    if stored.dtype not in DTYPES_OF_SCALES:
        raise ModelError(module.path, f"{module.name}.{name}", f"is {stored.dtype}", "Copy the folder again.")
    sides = _sides(module, name, (n, k), block)
    scale = widened(stored).reshape(-(-n // sides[0]), -(-k // sides[1]))
    if not np.isfinite(scale).all():
        row, column = (int(place) for place in np.argwhere(~np.isfinite(scale))[0])
        problem = f"is {scale[row, column]} at {[row, column]}"
        raise ModelError(module.path, f"{module.name}.{name}", problem, "The checkpoint is damaged; take another one.")

    def rows(first: int, last: int) -> NDArray[np.float32]:
        scales = scale[np.arange(first, last) // sides[0]]
        if sides[1] < k:
            scales = np.repeat(scales, sides[1], axis=1)[:, :k]
        with np.errstate(over="ignore"):  # `engine/model/matrices.py` refuses what is not finite
            numbers: NDArray[np.float32] = E4M3[weight[first:last]] * scales
        return numbers

    reading = f"a scale for each {sides[0]} x {sides[1]}"
    return WidenedMatrix(module.path, "fp8", (n, k), module.raw(), rows, reading)


def _sides(module: Module, name: str, shape: tuple[int, int], block: list[int] | None) -> tuple[int, int]:
    """Rows and columns of the matrix that have one scale, as the shape of the scales says: that of the blocks first,
    because as many blocks as rows are no scales of rows."""
    (n, k), stored = shape, module.parts[name].shape
    in_blocks = None if block is None else (-(-n // block[0]), -(-k // block[1]))
    if block is not None and stored == in_blocks:
        return block[0], block[1]
    if in_blocks is None or name == "weight_scale":
        if stored in ((), (1,), (1, 1)):
            return n, k
        if stored in ((n,), (n, 1)):
            return 1, k
    wanted = f"[{n}, 1] or one number" if in_blocks is None else f"{list(in_blocks)} for blocks of {block}"
    problem = f"has shape {list(stored)} instead of {wanted}, for a weight of {[n, k]}"
    raise ModelError(module.path, f"{module.name}.{name}", problem, "Copy config.json and the checkpoint again.")


def _e4m3() -> NDArray[np.float32]:
    """The number of each byte: sign, four bits of exponent with bias 7, three of mantissa; no infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size = np.where((exponent == 15) & (mantissa == 7), np.nan, size)
    return np.where(code & 128, -size, size).astype(np.float32)


E4M3 = _e4m3()
