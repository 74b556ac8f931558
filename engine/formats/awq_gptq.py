"""AWQ and GPTQ: four or eight bits in groups along the inputs, with a zero for each group.

Both store matrices by inputs first. AWQ packs eight outputs into a word in an order of its own. GPTQ packs inputs, may
have quantized them in another order (`desc_act`), and in its first version stores each zero minus one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.formats.errors import ModelError
from engine.formats.parts import DTYPES_OF_SCALES, Module, modules, scale_type, unpacked
from engine.formats.stored import Stored, StoredMatrix, Tensor

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word is output _AWQ_ORDER[i] of its eight
_OTHER = "Take the model in another format, or in bf16."
_GROUPS = (16, 32, 64, 128)


def read_awq(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    if settings.get("bits", 4) != 4 or settings.get("version", "gemm") != "gemm":
        problem = f"AWQ with {settings.get('bits')} bits, version {settings.get('version')!r} is not supported"
        raise ModelError(config, "quantization_config", problem, _OTHER)
    return _read(config, settings, tensors, _awq)


def read_gptq(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Stored]:
    if settings.get("bits") not in (4, 8):
        raise ModelError(
            config, "quantization_config", f"GPTQ with {settings.get('bits')} bits is not supported", _OTHER
        )
    version = settings.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise ModelError(config, "quantization_config", f"checkpoint_format {version!r} is not supported", _OTHER)
    return _read(config, settings, tensors, _gptq)


def _read(config: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor], one: Any) -> dict[str, Stored]:
    found: dict[str, Stored] = dict(tensors)
    for module in modules(tensors, ("qweight",)):
        for part in module.parts:
            found.pop(f"{module.name}.{part}")
        for part in ("bias",):
            if part in module.parts:
                found[f"{module.name}.{part}"] = module.parts[part]
        found[f"{module.name}.weight"] = one(config, settings, module)
    return found


def _group(config: Path, settings: Mapping[str, Any], k: int) -> int:
    group = settings.get("group_size", 128)
    group = k if group == -1 else group
    if not isinstance(group, int) or group < 1 or k % group:
        raise ModelError(config, "quantization_config", f"group_size {group!r} does not divide {k} inputs", _OTHER)
    if group in _GROUPS:
        return group
    for smaller in reversed(_GROUPS):  # a group of another length is several with one scale
        if group % smaller == 0:
            return smaller
    raise ModelError(config, "quantization_config", f"group_size {group} is no multiple of 16", _OTHER)


def _stored_groups(module: Module, groups: int) -> int:
    """How many groups the scales have: as many as the form, or one for several of them."""
    stored, _ = module.sides("scales")
    if groups % stored:
        raise ModelError(module.path, f"{module.name}.scales", f"has {stored} groups instead of {groups}", _OTHER)
    return stored


def _awq(config: Path, settings: Mapping[str, Any], module: Module) -> StoredMatrix:
    k, words = module.sides("qweight")
    n, group = words * 8, _group(config, settings, k)
    qweight = module.take("qweight", ("i32",), (k, words))
    stored = _stored_groups(module, k // group)
    scales, zeros = (
        module.take("scales", DTYPES_OF_SCALES, (stored, n)),
        module.take("qzeros", ("i32",), (stored, words)),
    )
    form = MatrixForm("int4-groups", group=group, offset="zero", scales=scale_type(module.parts["scales"]))

    def read() -> Integers:
        return Integers(
            form,
            np.ascontiguousarray(_straight(qweight).T).astype(np.int8),
            _repeated(scales.T, k // group),
            _repeated(_straight(zeros).T.astype(np.int8), k // group),
        )

    return StoredMatrix(module.path, "awq", (n, k), form, module.raw(), read)


def _straight(packed: NDArray[np.int32]) -> NDArray[np.uint8]:
    """AWQ's words [rows, n / 8] as nibbles [rows, n] in the order of the outputs."""
    nibbles = unpacked(packed, 4, 1).reshape(len(packed), -1, 8)
    return nibbles[:, :, np.argsort(_AWQ_ORDER)].reshape(len(packed), -1)


def _gptq(config: Path, settings: Mapping[str, Any], module: Module) -> StoredMatrix:
    bits = int(settings["bits"])
    words, n = module.sides("qweight")
    k = words * 32 // bits
    group = _group(config, settings, k)
    qweight = module.take("qweight", ("i32",), (words, n))
    stored = _stored_groups(module, k // group)
    scales = module.take("scales", DTYPES_OF_SCALES, (stored, n))
    zeros = module.take("qzeros", ("i32",), (stored, n * bits // 32))
    first = settings.get("checkpoint_format", "gptq") == "gptq"
    owner = (
        module.take("g_idx", ("i32",), (k,))
        if "g_idx" in module.parts
        else np.arange(k, dtype=np.int32) // (k // stored)
    )
    module.refuse_owners("g_idx", owner, stored, k // stored)
    order = np.argsort(owner, kind="stable").astype(np.int32)
    ordered = not np.array_equal(order, np.arange(k))
    scheme = "int4-groups" if bits == 4 else "int8-groups"
    form = MatrixForm(scheme, group=group, offset="zero", scales=scale_type(module.parts["scales"]), ordered=ordered)

    def read() -> Integers:
        values = np.ascontiguousarray(
            unpacked(qweight, bits, 0).T[:, order] if ordered else unpacked(qweight, bits, 0).T
        )
        zero = unpacked(zeros, bits, 1).T.astype(np.int16) + (1 if first else 0)
        if bits == 8:  # unsigned bytes become signed ones, and so do their zeros
            values, zero = values ^ np.uint8(128), (zero % 256) - 128
        return Integers(
            form,
            values.view(np.int8),
            _repeated(scales.T, k // group),
            _repeated(zero.astype(np.int8), k // group),
            order=order if ordered else None,
        )

    reading = "zeros are stored minus one" if first else "zeros are stored as they are"
    return StoredMatrix(module.path, "gptq", (n, k), form, module.raw(), read, reading)


def _repeated(values: NDArray[Any], groups: int) -> NDArray[Any]:
    """[n, stored groups] -> [n, groups], where a stored group is one or several."""
    return np.ascontiguousarray(np.repeat(values, groups // values.shape[1], axis=1))
