"""bitsandbytes: int8 with a scale per output, which stay integers; nf4 with a scale per 64 weights, widened to bf16.

nf4's sixteen numbers are no integers, and its blocks run on over the ends of rows, so it has no integer form."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.formats.errors import ModelError
from engine.formats.parts import AGAIN, Module, modules
from engine.formats.stored import Stored, StoredMatrix, Tensor, WidenedMatrix

_STATE = "weight.quant_state.bitsandbytes__nf4"


def read_bitsandbytes(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    found: dict[str, Stored] = dict(tensors)
    for module in modules(tensors, ("SCB",)):
        for part in ("SCB", "weight_format"):
            found.pop(f"{module.name}.{part}", None)
        found[f"{module.name}.weight"] = _int8(module)
    fours = sorted(name.removesuffix(f".{_STATE}") for name in tensors if name.endswith(f".{_STATE}"))
    for name in fours:
        parts = {
            key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.weight")
        }
        for part in parts:
            found.pop(f"{name}.{part}")
        found[f"{name}.weight"] = _nf4(Module(name, parts))
    others = [name for name in tensors if ".quant_state.bitsandbytes__" in name and not name.endswith(_STATE)]
    if others:
        raise ModelError(config, others[0], "is neither int8 nor nf4", "Take the model in another format, or in bf16.")
    return found


def _int8(module: Module) -> StoredMatrix:
    n, k = module.sides("weight")
    weight, form = module.take("weight", ("i8",), (n, k)), MatrixForm("int8")
    scales = module.take("SCB", ("fp32",), (n,)) / np.float32(127)  # each row's largest number
    return StoredMatrix(module.path, "bnb-int8", (n, k), form, module.raw(), lambda: Integers(form, weight, scales))


def _nf4(module: Module) -> WidenedMatrix:
    try:
        state = json.loads(bytes(module.take(_STATE, ("u8",), (None,))))
        n, k = (int(side) for side in state["shape"])
        block, nested, offset = int(state["blocksize"]), state.get("nested_blocksize"), state.get("nested_offset", 0.0)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(module.path, f"{module.name}.{_STATE}", f"cannot be read ({error!r})", AGAIN) from None
    if n < 1 or k < 1 or block < 1 or n * k % block or k % 2:
        raise ModelError(module.path, f"{module.name}.{_STATE}", f"has shape {[n, k]} in blocks of {block}", AGAIN)
    packed = module.take("weight", ("u8",), (n * k // 2, 1)).reshape(n, k // 2)
    table = module.take("weight.quant_map", ("fp32",), (16,))
    if nested:
        codes = module.take("weight.absmax", ("u8",), (n * k // block,))
        steps = module.take("weight.nested_absmax", ("fp32",), (-(-len(codes) // int(nested)),))
        inner = module.take("weight.nested_quant_map", ("fp32",), (256,))
        largest = inner[codes] * np.repeat(steps, int(nested))[: len(codes)] + np.float32(offset)
    else:
        largest = module.take("weight.absmax", ("fp32",), (n * k // block,))

    def rows(first: int, last: int) -> NDArray[np.float32]:
        some = packed[first:last]
        numbers = table[np.stack([some >> 4, some & 15], axis=-1).reshape(len(some), k)]
        scales = largest[np.arange(first * k, last * k) // block]
        with np.errstate(over="ignore"):  # `engine/model/matrices.py` refuses what is not finite
            widened: NDArray[np.float32] = numbers * scales.reshape(len(some), k)
        return widened

    return WidenedMatrix(module.path, "bnb-nf4", (n, k), module.raw(), rows)
