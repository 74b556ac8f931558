"""Reads the fields of a mixture of experts: how many there are, how many compute a row, and which layers have them."""

from typing import Any

from engine.families.family import Family
from engine.families.fields import DAMAGED, ConfigFields

_COUNTS = ("num_experts", "num_local_experts")  # two names of one field


def read_experts(fields: ConfigFields, family: Family) -> dict[str, Any]:
    """The fields of `ModelConfig` about experts."""
    row = family.experts
    if row is None:
        return {}
    count, chosen = _count(fields, row.count), fields.positive("num_experts_per_tok", row.chosen)
    if chosen > count:
        fields.refuse("num_experts_per_tok", f"{chosen} is more than the {count} experts", DAMAGED)
    return {
        "experts": count,
        "experts_per_token": chosen,
        "expert_ffn": fields.positive(row.width, row.default_width or None),
        "experts_normalised": fields.flag(row.normalised, False) if isinstance(row.normalised, str) else row.normalised,
        "shared_ffn": fields.positive(row.shared, row.default_shared) if row.shared else 0,
        "dense_layers": _dense_layers(fields) if row.some_layers else (),
    }


def _count(fields: ConfigFields, default: int) -> int:
    given = [name for name in _COUNTS if fields.raw.get(name) is not None]
    counts = [fields.positive(name) for name in given] or [default]
    if len(set(counts)) > 1:
        fields.refuse(given[0], f"is {counts[0]}, and {given[1]} is {counts[1]}", DAMAGED)
    return counts[0]


def _dense_layers(fields: ConfigFields) -> tuple[int, ...]:
    """The layers that have one MLP: those of `mlp_only_layers`, and all but each decoder_sparse_step-th."""
    layers, step = fields.positive("num_hidden_layers"), fields.positive("decoder_sparse_step", 1)
    listed = fields.raw.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        fields.refuse("mlp_only_layers", f"{listed!r} is not a list of layers", DAMAGED)
    return tuple(layer for layer in range(layers) if layer in listed or (layer + 1) % step)
