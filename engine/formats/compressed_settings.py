"""Checks the quantization_config of a compressed-tensors folder before any tensor is read.

The tensors say how each matrix is quantized. What they do not say stands here: the lengths of blocks, and settings that
change what a model computes and that Baton does not follow. Those are refused by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.formats.errors import ModelError
from engine.formats.fp8 import block_of
from engine.formats.parts import AGAIN

_FORMATS = (
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "float-quantized",
    "mxfp4-pack-quantized",
    "dense",
    "mixed-precision",
)
_OTHER = "Take the model in another format, or in bf16."
_TURNED_WEIGHTS = ("weight_input", "weight_output")  # places of transforms that the stored weights have in them


def checked_settings(config: Path, settings: Mapping[str, Any]) -> list[int] | None:
    """Rows and columns of the blocks that have one scale each; None: no modules have blocks."""
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ModelError(config, "quantization_config", "config_groups is no table of objects", AGAIN)
    for kind in (settings.get("format"), *(group.get("format") or settings.get("format") for group in groups.values())):
        if not isinstance(kind, str) or kind not in _FORMATS:
            raise ModelError(config, "quantization_config", f"format {kind!r} is not supported", _OTHER)
    sparsity = settings.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise ModelError(config, "quantization_config", "sparse weights are not supported", _OTHER)
    for scheme, place in _transforms(settings.get("transform_config") or {}):
        if place not in _TURNED_WEIGHTS:
            problem = f"transform_config turns activations while the model runs (scheme {scheme}, location {place!r})"
            remedy = "Take a checkpoint of this model without transforms, or the model in bf16."
            raise ModelError(config, "quantization_config", problem, remedy)
    return _block(config, [group["weights"] for group in groups.values() if isinstance(group.get("weights"), dict)])


def _transforms(settings: Any) -> Iterator[tuple[str, Any]]:
    """Each scheme and a place where it applies; a place that cannot be read is None."""
    schemes = settings.get("config_groups", {}) if isinstance(settings, dict) else None
    if not isinstance(schemes, dict):
        yield "?", None
        return
    for name, scheme in schemes.items():
        places = scheme.get("apply") if isinstance(scheme, dict) else None
        for place in places if isinstance(places, list) else (None,):
            yield name, place.get("location") if isinstance(place, dict) else None


def _block(config: Path, weights: list[dict[str, Any]]) -> list[int] | None:
    given = [each["block_structure"] for each in weights if each.get("block_structure") is not None]
    if any(each != given[0] for each in given):
        problem = f"block_structure is {given[0]!r} for some modules and another one for others"
        raise ModelError(config, "quantization_config", problem, _OTHER)
    return block_of(config, "block_structure", given[0]) if given else None
