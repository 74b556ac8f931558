"""Reads the fields of a mixture of experts: how many there are, how many compute a row, and which layers have them."""

from typing import Any

from engine.families.family import Experts, Family
from engine.families.fields import DAMAGED, ConfigFields

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names of one field


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
        "experts_factor": fields.number(row.factor, 1.0) if row.factor else 1.0,
        "shared_ffn": _shared(fields, row),
        "shared_gated": row.shared_gated,
        "dense_layers": _dense_layers(fields, row),
    }


def _shared(fields: ConfigFields, row: Experts) -> int:
    """The width of the expert that computes every row; 0: there is none."""
    if not row.shared:
        return 0
    width = fields.positive(row.shared, row.default_shared)
    return width * fields.positive(row.shared_each, row.default_width) if row.shared_each else width


def _count(fields: ConfigFields, default: int) -> int:
    given = [name for name in _COUNTS if fields.raw.get(name) is not None]
    counts = [fields.positive(name) for name in given] or [default]
    if len(set(counts)) > 1:
        fields.refuse(given[0], f"is {counts[0]}, and {given[1]} is {counts[1]}", DAMAGED)
    return counts[0]


def _dense_layers(fields: ConfigFields, row: Experts) -> tuple[int, ...]:
    """The layers that have one MLP: the first ones, those of `mlp_only_layers`, or all but each decoder_sparse_step-th,
    as the family says."""
    layers = fields.positive("num_hidden_layers")
    if row.dense_first:
        first = fields.raw.get(row.dense_first, 0)
        if type(first) is not int or first < 0:
            fields.refuse(row.dense_first, f"{first!r} is not a whole number of layers", DAMAGED)
        return tuple(range(min(first, layers)))
    if not row.some_layers:
        return ()
    step = fields.positive("decoder_sparse_step", 1)
    listed = fields.raw.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        fields.refuse("mlp_only_layers", f"{listed!r} is not a list of layers", DAMAGED)
    return tuple(layer for layer in range(layers) if layer in listed or (layer + 1) % step)
