"""Folders whose config.json has a quantization_config: the tensors of each quantized matrix become one stored matrix.

`quantization_config` says which method wrote the folder; every method has a reader. What a reader does not find in a
tensor's name stays as it is. Methods and settings that nobody reads here are refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from baton_kernels import OWN
from engine.formats.awq_gptq import read_awq, read_gptq
from engine.formats.bitsandbytes import read_bitsandbytes
from engine.formats.compressed import read_compressed
from engine.formats.errors import ModelError
from engine.formats.fp8 import read_fp8
from engine.formats.mxfp4 import read_mxfp4
from engine.formats.stored import Stored, Tensor
from mesh.config.small_files import read_small

Settings = Mapping[str, Any]
Reader = Callable[[Path, Settings, dict[str, Tensor]], dict[str, Stored]]
_READERS: dict[str, Reader] = {
    "compressed-tensors": read_compressed,
    "awq": read_awq,
    "gptq": read_gptq,
    "fp8": read_fp8,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
}
_KV = {"int of 8 bits": "int8", "float of 8 bits": "fp8"}  # by a kv_cache_scheme


def quantization_of(folder: Path) -> Settings | None:
    """The quantization_config of a folder; a config.json that cannot be read has none, and its reader says why."""
    try:
        raw = json.loads(read_small(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return None
    found = raw.get("quantization_config") if isinstance(raw, dict) else None
    if found is not None and not isinstance(found, dict):
        raise ModelError(folder / "config.json", "quantization_config", "is no object", "Copy the folder again.")
    return found


def kv_of(folder: Path) -> str:
    """How pages hold keys and values of this folder's model: int8 or fp8 where the folder asks for it. Scales that were
    stored for whole tensors are left out: pages have one for each token and head."""
    scheme = (quantization_of(folder) or {}).get("kv_cache_scheme")
    if scheme is None:
        return OWN
    kind = f"{scheme.get('type')} of {scheme.get('num_bits')} bits" if isinstance(scheme, dict) else ""
    if kind not in _KV:
        problem = f"kv_cache_scheme {scheme!r} is not supported"
        remedy = "Take a folder with 8 bits of int or float there, or without it."
        raise ModelError(folder / "config.json", "quantization_config", problem, remedy)
    return _KV[kind]


def read_quantized(folder: Path, settings: Settings, tensors: dict[str, Tensor]) -> dict[str, Stored]:
    method = settings.get("quant_method")
    if not isinstance(method, str) or method not in _READERS:
        problem = f"quant_method {method!r} is not supported"
        remedy = f"Baton reads {', '.join(_READERS)}, and GGUF; take one of these, or the model in bf16."
        raise ModelError(folder / "config.json", "quantization_config", problem, remedy)
    kv_of(folder)  # what it asks for is refused here if nobody knows it
    return _READERS[method](folder / "config.json", settings, tensors)
