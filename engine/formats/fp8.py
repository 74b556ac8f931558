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
    block = settings.get("weight_block_size")
    if block is not None and (
        not isinstance(block, list) or len(block) != 2 or not all(type(x) is int and x > 0 for x in block)
    ):
        raise ModelError(
            config, "quantization_config", f"weight_block_size {block!r} is no pair", "Copy the folder again."
        )
    found: dict[str, Stored] = dict(tensors)
    for module in modules(tensors, _SCALES):
        for part in (*_SCALES, "input_scale", "activation_scale"):
            found.pop(f"{module.name}.{part}", None)
        found[f"{module.name}.weight"] = fp8_matrix(module, block)
    return found


def fp8_matrix(module: Module, block: list[int] | None) -> WidenedMatrix:
    n, k = module.sides("weight")
    weight = module.take("weight", ("f8_e4m3",), (n, k))
    name = next(name for name in _SCALES if name in module.parts)
    scale = widened(Tensor(module.path, module.parts[name].dtype, module.parts[name].values))
    if module.parts[name].dtype not in DTYPES_OF_SCALES:
        raise ModelError(
            module.path, f"{module.name}.{name}", f"is {module.parts[name].dtype}", "Copy the folder again."
        )

    def rows(first: int, last: int) -> NDArray[np.float32]:
        numbers: NDArray[np.float32] = E4M3[weight[first:last]] * _of_rows(scale, first, last, n, k, block)
        return numbers

    shape = scale.shape
    rows_fit = scale.size in (1, n) or (block is not None and shape == (-(-n // block[0]), -(-k // block[1])))
    if not rows_fit:
        raise ModelError(module.path, f"{module.name}.{name}", f"has shape {list(shape)}", "Copy the folder again.")
    return WidenedMatrix(module.path, "fp8", (n, k), module.raw(), rows)


def _of_rows(
    scale: NDArray[np.float32], first: int, last: int, n: int, k: int, block: list[int] | None
) -> NDArray[np.float32]:
    if scale.size == 1:
        return scale.reshape(1, 1)
    if scale.size == n:
        return scale.reshape(n, 1)[first:last]
    assert block is not None
    rows = scale[np.arange(first, last) // block[0]]
    return np.repeat(rows, block[1], axis=1)[:, :k]


def _e4m3() -> NDArray[np.float32]:
    """The number of each byte: sign, four bits of exponent with bias 7, three of mantissa; no infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size = np.where((exponent == 15) & (mantissa == 7), np.nan, size)
    return np.where(code & 128, -size, size).astype(np.float32)


E4M3 = _e4m3()
