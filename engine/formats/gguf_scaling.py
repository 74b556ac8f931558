"""How a GGUF file stretches its rope, in the words of Hugging Face's `rope_scaling`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_file import GgufFile

_FREQUENCIES = "rope_freqs.weight"  # factors of llama 3's rotary table
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def rope_scaling(file: GgufFile, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The field `rope_scaling`; None: the rope is not stretched."""
    if _LONG in file.tensors or _SHORT in file.tensors:
        dim = file.take(f"{arch}.rope.dimension_count", int, head_dim)
        return {
            "rope_type": "longrope",
            "short_factor": _decimals(_factors(file, _SHORT, dim // 2)),
            "long_factor": _decimals(_factors(file, _LONG, dim // 2)),
        }
    key = f"{arch}.rope.scaling"
    kind = file.metadata.get(f"{key}.type", "none")
    if kind in ("linear", "yarn"):
        found: dict[str, Any] = {"rope_type": kind, "factor": file.take(f"{key}.factor", float)}
        if kind == "yarn":
            found["original_max_position_embeddings"] = file.take(f"{key}.original_context_length", int)
            for name, stored in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
                if f"{key}.{stored}" in file.metadata:
                    found[name] = file.take(f"{key}.{stored}", float)
        return found
    if kind != "none":
        raise ModelError(file.path, f"{key}.type", f"{kind!r} is not supported", "Take a file without it.")
    return _llama3(file, head_dim, theta) if _FREQUENCIES in file.tensors else None


def _llama3(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    """The parameters from which llama.cpp has computed these factors: those of Llama 3.1 and 3.2."""
    factors = _factors(file, _FREQUENCIES, head_dim // 2)
    original = 8192
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    for factor in (8.0, 32.0, float(factors.max())):
        low, high = 1.0, 4.0
        smooth = (original / wavelengths - low) / (high - low)
        middle = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(wavelengths < original / high, 1.0, np.where(wavelengths > original / low, factor, middle))
        if np.allclose(factors, wanted, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelError(file.path, _FREQUENCIES, "are factors of an unknown scaling", "Take the model's safetensors.")


def _factors(file: GgufFile, name: str, count: int) -> NDArray[np.float32]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(file.path, name, "tensor is missing", "Download the file again.")
    if tensor.kind != "F32" or tensor.shape != (count,):
        raise ModelError(file.path, name, f"is {tensor.kind} {tensor.shape}", "Download the file again.")
    return tensor.raw.reshape(-1).view(np.float32)


def _decimals(numbers: NDArray[np.float32]) -> list[float]:
    """The shortest decimals of these floats, which is what their maker wrote."""
    return [float(str(number)) for number in numbers]
