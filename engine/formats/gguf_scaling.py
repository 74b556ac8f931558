"""How a GGUF file stretches its rope, in the words of Hugging Face's `rope_scaling`."""

from math import isclose, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_file import GgufFile

_NEAR = 1e-4
_WITHOUT = "Take a file without it, or the model's safetensors."
_FREQUENCIES = "rope_freqs.weight"  # factors of llama 3's rotary table
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_OLD_FACTOR = "scale_linear"  # the key of a linear factor in files of 2023
_READ = (
    "dimension_count", "freq_base", "freq_base_swa", "scaling.type", "scaling.factor", _OLD_FACTOR,
    "scaling.original_context_length", "scaling.yarn_beta_fast", "scaling.yarn_beta_slow",
    "scaling.finetuned",  # it changes no number
)  # fmt: skip
# Settings for which Hugging Face has no field, with the values that change nothing.
_NEUTRAL = {
    "scaling.attn_factor": (1.0,),
    "scaling.yarn_attn_factor": (1.0,),  # beside yarn the number that yarn has without it
    "scaling.yarn_ext_factor": (1.0, -1.0),
    "scaling.yarn_log_multiplier": (0.0,),
    "scaling.alpha": (0.0,),
}


def refuse_other_ropes(file: GgufFile, arch: str, *, own_attention: bool) -> None:
    """Raises ModelError for a setting of the rope that would be ignored. `own_attention`: the family reads the factor
    of attention."""
    prefix, neutral = f"{arch}.rope.", dict(_NEUTRAL)
    kind, factor = _kind_and_factor(file, arch)
    if kind == "yarn":
        neutral["scaling.yarn_attn_factor"] = (1 + 0.1 * log(max(factor, 1.0)),)
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or name in _READ or (own_attention and name == "scaling.attn_factor"):
            continue
        fits = isinstance(value, int | float) and any(
            isclose(value, one, rel_tol=_NEAR) for one in neutral.get(name, ())
        )
        if not fits:
            said = f"{value!r}"[:80]
            raise ModelError(file.path, key, f"is {said}, which Baton does not compute", _WITHOUT)


def rope_scaling(file: GgufFile, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The field `rope_scaling`; None: the rope is not stretched."""
    key = f"{arch}.rope.scaling"
    kind, factor = _kind_and_factor(file, arch)
    if _LONG in file.tensors or _SHORT in file.tensors:
        if kind not in ("none", "longrope") or arch != "phi3":
            problem = f"stands beside a rope of the kind {kind!r} in a model of the architecture {arch}"
            raise ModelError(file.path, _LONG, problem, _WITHOUT)
        dim = file.take(f"{arch}.rope.dimension_count", int, head_dim)
        return {
            "rope_type": "longrope",
            "short_factor": _decimals(_factors(file, _SHORT, dim // 2)),
            "long_factor": _decimals(_factors(file, _LONG, dim // 2)),
        }
    if kind == "none":
        return _llama3(file, head_dim, theta) if _FREQUENCIES in file.tensors else None
    if kind not in ("linear", "yarn"):
        raise ModelError(file.path, f"{key}.type", f"{kind!r} is not supported", _WITHOUT)
    if _FREQUENCIES in file.tensors:
        raise ModelError(file.path, _FREQUENCIES, f"stands beside a rope of the kind {kind!r}", _WITHOUT)
    found: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found["original_max_position_embeddings"] = file.take(f"{key}.original_context_length", int)
        for name, stored in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if f"{key}.{stored}" in file.metadata:
                found[name] = file.take(f"{key}.{stored}", float)
    return found


def _kind_and_factor(file: GgufFile, arch: str) -> tuple[Any, float]:
    """How the rope is stretched, and how far. As in llama.cpp a file that names a factor alone means a linear one, and
    a factor of 0 or 1 stretches nothing."""
    key = f"{arch}.rope.scaling"
    kind, field = file.metadata.get(f"{key}.type"), f"{key}.factor"
    if not file.metadata.get(field) and f"{arch}.rope.{_OLD_FACTOR}" in file.metadata:
        field = f"{arch}.rope.{_OLD_FACTOR}"
    if kind not in (None, "linear", "yarn") or (kind is None and field not in file.metadata):
        return kind or "none", 1.0
    factor: float = file.take(field, float)
    linear = kind in (None, "linear")
    return ("none" if linear and factor in (0.0, 1.0) else "linear" if linear else kind), factor


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
