"""compressed-tensors, the format of llmcompressor and vLLM: int8 per output or group, int4 in groups, fp8.

The tensors of a module say how it is quantized: those that the folder's `ignore` names have no scales. A W4A16 folder
was made for 16-bit activations; here its integers meet 8-bit ones, which the numerics class says."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.formats.compressed_settings import checked_settings
from engine.formats.errors import ModelError
from engine.formats.factors import progressive
from engine.formats.fp8 import fp8_matrix
from engine.formats.mxfp4 import BLOCK, mxfp4_matrix
from engine.formats.parts import AGAIN, DTYPES_OF_SCALES, Module, modules, scale_type, unpacked
from engine.formats.stored import Stored, StoredMatrix, Tensor

_OTHER = "Take the model in another format, or in bf16."
_LEFT_OUT = ("input_scale", "input_zero_point", "weight_shape", "weight_g_idx", "output_scale")
_OF_PAGES = (".self_attn.k_scale", ".self_attn.v_scale", ".self_attn.q_scale")  # scales for whole tensors: see `kv_of`
_GROUPS = (16, 32, 64, 128)


def read_compressed(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    block = checked_settings(config, settings)
    found: dict[str, Stored] = {name: each for name, each in tensors.items() if not name.endswith(_OF_PAGES)}
    for module in modules(tensors, ("weight_scale",)):
        for part in module.parts:
            if part != "bias":
                found.pop(f"{module.name}.{part}")
        found[f"{module.name}.weight"] = _matrix(module, block)
    return found


def _matrix(module: Module, block: list[int] | None) -> Stored:
    if "weight_packed" in module.parts:
        return _mxfp4(module) if module.parts["weight_packed"].dtype == "u8" else _packed(module)
    n, k = module.sides("weight")
    if module.parts["weight"].dtype == "f8_e4m3":
        return fp8_matrix(module, block)
    return _integers(module, "int8", n, k, lambda: module.take("weight", ("i8",), (n, k)))


def _mxfp4(module: Module) -> StoredMatrix:
    """Two numbers in each byte, the first one in the low nibble."""
    n, half = module.sides("weight_packed")
    k = 2 * half
    if k % BLOCK:
        raise ModelError(module.path, f"{module.name}.weight_packed", f"has {k} inputs, no blocks of {BLOCK}", AGAIN)
    packed = module.take("weight_packed", ("u8",), (n, half))
    powers = module.take("weight_scale", ("u8",), (n, k // BLOCK))
    name, dtype = f"{module.name}.weight_scale", "compressed-tensors-mxfp4"
    return replace(mxfp4_matrix(module.path, name, dtype, packed, powers), raw=module.raw())


def _packed(module: Module) -> StoredMatrix:
    """Numbers of four or eight bits in words, along the inputs; the lowest number of a form is stored as 0."""
    shape = module.take("weight_shape", ("i64", "i32"), (2,))
    n, k = (int(side) for side in shape)
    _, words = module.sides("weight_packed")
    if n < 1 or k < 1:
        raise ModelError(module.path, f"{module.name}.weight_shape", f"is {n} x {k}", AGAIN)
    bits = 4 if words == -(-k // 8) else 8
    packed = module.take("weight_packed", ("i32",), (n, -(-k * bits // 32)))

    def values() -> NDArray[np.int8]:
        numbers = unpacked(packed, bits, 1)[:, :k]
        return (numbers ^ np.uint8(128)).view(np.int8) if bits == 8 else numbers.view(np.int8)

    return _integers(module, f"int{bits}", n, k, values)


def _integers(module: Module, kind: str, n: int, k: int, values: Any) -> StoredMatrix:
    tensor = module.parts["weight_scale"]
    stored = tensor.values.size // n if tensor.values.size >= n else 0
    if tensor.values.size != (stored * n or 1) or (stored and tensor.shape not in ((n, stored), (n,))):
        problem = f"has shape {list(tensor.shape)} for a weight of {n} rows"
        raise ModelError(tensor.path, f"{module.name}.weight_scale", problem, AGAIN)
    scales = module.take("weight_scale", DTYPES_OF_SCALES, tensor.shape).reshape(-1 if stored == 0 else (n, stored))
    zeros, order = _zeros(module, kind, n, stored), _order(module, k, stored)
    label = f"compressed-tensors-{kind}"
    if kind == "int8" and stored <= 1 and zeros is None and order is None:
        form = MatrixForm("int8")
        whole = _widened(tensor.dtype, np.repeat(scales, n) if stored == 0 else scales[:, 0])
        return StoredMatrix(module.path, label, (n, k), form, module.raw(), lambda: Integers(form, values(), whole))
    stored = max(1, stored)
    scales = np.broadcast_to(scales.reshape(-1, stored), (n, stored))
    group = _group(module, k, stored)
    middle = 8 if kind == "int4" and zeros is None else 0
    form = MatrixForm(
        f"{kind}-groups",
        group=group,
        middle=middle,
        offset="none" if zeros is None else "zero",
        scales=scale_type(tensor),
        ordered=order is not None,
    )
    if (
        kind == "int4"
        and order is None
        and (found := progressive(_widened(tensor.dtype, scales), zeros, group)) is not None
    ):
        own = MatrixForm("int4", group=group)
        rows, factors, own_zeros = found
        return StoredMatrix(
            module.path, label, (n, k), own, module.raw(), lambda: Integers(own, values(), rows, own_zeros, factors)
        )

    def read() -> Integers:
        numbers = values()
        return Integers(
            form,
            np.ascontiguousarray(numbers[:, order]) if order is not None else numbers,
            _repeated(scales, k // group),
            None if zeros is None else _repeated(zeros, k // group),
            order=order,
        )

    return StoredMatrix(module.path, label, (n, k), form, module.raw(), read)


def _zeros(module: Module, kind: str, n: int, stored: int) -> NDArray[np.int8] | None:
    """The zeros, in the numbers that are stored; None: the scheme is symmetric."""
    tensor = module.parts.get("weight_zero_point")
    if tensor is None:
        return None
    groups = max(1, stored)
    if tensor.dtype == "i32":
        bits = 4 if kind == "int4" else 8
        packed = module.take("weight_zero_point", ("i32",), (-(-n * bits // 32), groups))
        numbers = unpacked(packed, bits, 0)[:n]
        found = (numbers ^ np.uint8(128)).view(np.int8) if bits == 8 else numbers.view(np.int8)
    else:
        if tensor.size not in (groups, n * groups):
            problem = f"has {tensor.size} values for {n} rows of {groups} groups"
            raise ModelError(tensor.path, f"{module.name}.weight_zero_point", problem, AGAIN)
        found = module.take("weight_zero_point", ("i8",), tensor.shape).reshape(-1, groups)
        if kind == "int4":
            found = found + np.int8(8)
    if not found.any() and kind == "int8":
        return None
    return np.ascontiguousarray(np.broadcast_to(found, (n, groups)))


def _order(module: Module, k: int, stored: int) -> NDArray[np.int32] | None:
    """The inputs by group, where they were quantized in another order."""
    if "weight_g_idx" not in module.parts:
        return None
    owner = module.take("weight_g_idx", ("i32", "i64"), (k,))
    if owner.min() < 0:
        return None
    module.refuse_owners("weight_g_idx", owner, max(1, stored), k // max(1, stored))
    order = np.argsort(owner, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(k)) else order


def _group(module: Module, k: int, stored: int) -> int:
    if k % stored:
        raise ModelError(module.path, f"{module.name}.weight_scale", f"has {stored} groups for {k} inputs", _OTHER)
    for group in reversed(_GROUPS):
        if (k // stored) % group == 0:
            return group
    raise ModelError(module.path, f"{module.name}.weight_scale", f"groups have {k // stored} inputs", _OTHER)


def _widened(dtype: str, scales: NDArray[Any]) -> NDArray[np.float32]:
    if dtype == "bf16":
        return (np.ascontiguousarray(scales).astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(scales, np.float32)


def _repeated(values: NDArray[Any], groups: int) -> NDArray[Any]:
    return np.ascontiguousarray(np.repeat(values, groups // values.shape[1], axis=1))
