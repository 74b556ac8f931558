"""How a quantized matrix is written: the tensors of compressed-tensors, and what its config.json says about them.

Other programs read these folders as well. Which products they compute with them is theirs to choose: four bits are
declared for 16-bit activations there, and eight bits with a scale per output for 8-bit ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels import OWN, Integers, MatrixForm

Parts = dict[str, tuple[str, NDArray[Any]]]  # by what follows the module's name: dtype of the file, and values
_MIDDLE = np.uint8(128)  # that a stored byte has more than the int8 for which it stands


def parts_of(matrix: Integers) -> Parts:
    """`matrix` is int8, int8 in groups, or int4, with the scales in fp32."""
    form, (n, k) = matrix.form, matrix.values.shape
    if form.scheme == "int8":
        return {"weight": ("i8", matrix.values), "weight_scale": ("fp32", matrix.scales.reshape(n, 1))}
    shape = {"weight_shape": ("i64", np.array([n, k], np.int64))}
    if form.scheme == "int8-groups":
        return {
            "weight_packed": ("i32", words(matrix.values.view(np.uint8) ^ _MIDDLE, 8)),
            "weight_scale": ("fp32", matrix.scales),
            **shape,
        }
    assert form.scheme == "int4" and matrix.offsets is not None and matrix.factors is not None
    return {
        "weight_packed": ("i32", words(matrix.values.view(np.uint8), 4)),
        "weight_scale": ("fp32", matrix.scales[:, None] * matrix.factors),
        "weight_zero_point": ("i32", np.ascontiguousarray(words(matrix.offsets.T.view(np.uint8), 4).T)),
        **shape,
    }


def words(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Packs the numbers of each row into words, the first one lowest; the last word is filled with zeros."""
    per = 32 // bits
    rows, count = numbers.shape
    padded = np.zeros((rows, -(-count // per) * per), np.uint32)
    padded[:, :count] = numbers
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    packed: NDArray[np.uint32] = np.bitwise_or.reduce(padded.reshape(rows, -1, per) << shifts, axis=2)
    return packed.view(np.int32)


def settings_of(forms: Mapping[str, MatrixForm], ignored: list[str], kv: str) -> dict[str, Any]:
    """`quantization_config` for modules whose names end as these regular expressions say. `kv`: int8, fp8 or own."""
    targets: dict[tuple[str, int], set[str]] = {}
    for pattern, form in forms.items():
        targets.setdefault((form.scheme, form.group), set()).add(pattern)
    groups = {
        f"group_{number}": _group(scheme, group, sorted(patterns))
        for number, ((scheme, group), patterns) in enumerate(sorted(targets.items()))
    }
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ignored,
        "kv_cache_scheme": _kv_scheme(kv),
    }


def _kv_scheme(kv: str) -> dict[str, Any] | None:
    if kv == OWN:
        return None
    kind = {"int8": "int", "fp8": "float"}[kv]
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "attn_head", "dynamic": True}


def _group(scheme: str, group: int, patterns: list[str]) -> dict[str, Any]:
    bits, whole = 4 if scheme == "int4" else 8, scheme == "int8"
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": bits == 8,
        "strategy": "channel" if whole else "group",
        "group_size": None if whole else group,
        "dynamic": False,
    }
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "targets": [f"re:.*{pattern}$" for pattern in patterns],
        "weights": weights,
        "input_activations": activations if whole else None,
        "format": "int-quantized" if whole else "pack-quantized",
    }
