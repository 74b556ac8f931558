"""How a model rotates queries and keys, and how its config.json says so.

`rope_scaling` (before transformers 5) wins over `rope_parameters`; `rope_theta` may stand beside either. Families whose
sliding layers have a rope of their own hold one set of parameters for each kind of layer."""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from engine.families.family import Family
from engine.families.fields import ConfigFields

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    kind: str = "none"  # none | linear | llama3 | yarn | longrope
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    dim: int = 0  # elements of a head that are rotated, the first ones; 0: all
    interleaved: bool = False  # elements 2i and 2i + 1 are a pair, not i and i + half of them
    attention_factor: float = 1.0  # sine and cosine are multiplied by it
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # yarn's ramp begins and ends at whole dimensions
    factors: tuple[float, ...] = ()  # longrope divides each frequency by its own


@dataclass(frozen=True, slots=True)
class _Reading:
    """Everything that the parameters of a rope are read with."""

    fields: ConfigFields
    family: Family
    head_dim: int
    context: int  # as config.json has it
    served: int  # tokens that a request may have


def read_rope(fields: ConfigFields, family: Family, head_dim: int, context: int, served: int) -> Rope:
    """The rope of all layers, or of those that see everything. `served`: no request has more tokens."""
    reading = _Reading(fields, family, head_dim, context, served)
    if family.ropes.local_theta:
        parameters = _of_kind(fields, "full_attention") | (fields.raw.get("rope_scaling") or {})
        theta = fields.number("rope_theta", family.ropes.theta)
        return _rope(reading, "rope_parameters", {"rope_theta": theta} | parameters)
    field = "rope_scaling" if fields.raw.get("rope_scaling") else "rope_parameters"
    scaling = dict(family.ropes.parameters) if fields.raw.get(field) is None else fields.raw[field] or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        fields.refuse(field, "is not one flat set of numbers")
    theta = fields.number("rope_theta", family.ropes.theta)
    return _rope(reading, field, {"rope_theta": theta} | scaling)


def read_local_rope(fields: ConfigFields, family: Family, head_dim: int, context: int, served: int) -> Rope | None:
    """The rope of sliding layers, where it is another one."""
    if not family.ropes.local_theta:
        return None
    theta = family.ropes.local_theta
    if family.ropes.local_field:
        theta = fields.number(family.ropes.local_field, theta)
    reading = _Reading(fields, family, head_dim, context, served)
    return _rope(reading, "rope_parameters", {"rope_theta": theta} | _of_kind(fields, "sliding_attention"))


def layers_without_rope(fields: ConfigFields, family: Family, layers: int) -> tuple[bool, ...]:
    """For each layer whether it leaves queries and keys as they are."""
    if not family.ropes.without:
        return (False,) * layers
    field = family.ropes.without
    listed = fields.raw.get(field)
    if listed is None:
        interval = fields.positive(family.ropes.without_interval, 4)
        return tuple((layer + 1) % interval == 0 for layer in range(layers))
    if not isinstance(listed, list) or len(listed) != layers or not all(isinstance(each, int) for each in listed):
        fields.refuse(field, f"is not a list of numbers for {layers} layers")
    return tuple(not each for each in listed)


def _of_kind(fields: ConfigFields, kind: str) -> dict[str, Any]:
    parameters = fields.raw.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not set(parameters) <= {"full_attention", "sliding_attention"}:
        fields.refuse("rope_parameters", "is not a set of numbers for each kind of layer")
    one = parameters.get(kind) or {}
    scaling = fields.raw.get("rope_scaling") or {}
    if not isinstance(one, dict) or not isinstance(scaling, dict):
        fields.refuse("rope_parameters", "is not a set of numbers for each kind of layer")
    return one


def _rope(reading: _Reading, field: str, scaling: dict[str, Any]) -> Rope:
    fields, family = reading.fields.inside(scaling), reading.family
    theta, dim = fields.number("rope_theta"), _rotated(reading, field, scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = dict(family.ropes.names).get(kind, kind)
    whole: dict[str, Any] = {"dim": 0 if dim == reading.head_dim else dim, "interleaved": family.ropes.interleaved}
    if kind in ("default", "dynamic"):  # dynamic changes nothing within max_position_embeddings
        return Rope(theta, **whole)
    if kind == "linear":
        return Rope(theta, "linear", fields.number("factor"), **whole)
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            _original_context(reading, scaling),
            **whole,
        )
    if kind == "yarn":
        return _yarn(reading, scaling, theta, whole)
    if kind == "longrope":
        return _longrope(reading, scaling, theta, whole)
    return fields.refuse(f"{field}.rope_type", f"{kind!r} is not one of {', '.join(KINDS)}")


def _yarn(reading: _Reading, scaling: dict[str, Any], theta: float, whole: dict[str, Any]) -> Rope:
    fields, original = reading.fields.inside(scaling), _original_context(reading, scaling)
    factor = fields.number("factor", reading.context / original)

    attention = float(stretch(factor, 1.0))
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        weights = fields.number("mscale"), fields.number("mscale_all_dim")
        attention = float(stretch(factor, weights[0]) / stretch(factor, weights[1]))
    return Rope(
        theta,
        "yarn",
        factor,
        original_context=original,
        attention_factor=fields.number("attention_factor", attention),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        **whole,
    )


def _longrope(reading: _Reading, scaling: dict[str, Any], theta: float, whole: dict[str, Any]) -> Rope:
    """transformers takes the short factors for a text within the original context, and the long ones for a longer one.
    Keys in a page cannot change when a text grows, so the most that a request may have decides here for all texts."""
    fields, original = reading.fields.inside(scaling), _original_context(reading, scaling)
    factor = fields.number("factor", reading.context / original)
    attention = Decimal(1)
    if factor > 1:
        attention = (1 + _ln(factor) / _ln(original)).sqrt()
    half = (whole["dim"] or reading.head_dim) // 2
    short, long = (fields.numbers(name, half) for name in ("short_factor", "long_factor"))
    return Rope(
        theta,
        "longrope",
        factor,
        original_context=original,
        attention_factor=fields.number("attention_factor", float(attention)),
        factors=long if reading.served > original else short,
        **whole,
    )


def stretch(factor: float, weight: float) -> Decimal:
    """The factor of attention in a context that yarn has made so many times as long."""
    return 1 + Decimal("0.1") * Decimal(weight) * _ln(factor) if factor > 1 else Decimal(1)


def _ln(number: float) -> Decimal:
    """The logarithm, rounded alike on every machine."""
    with localcontext() as context:
        context.prec = 40
        return Decimal(number).ln()


def _original_context(reading: _Reading, scaling: dict[str, Any]) -> int:
    name, raw = "original_max_position_embeddings", reading.fields.raw
    default = reading.family.ropes.original_context
    if default and raw.get(name) is None:
        return default
    own = raw if raw.get(name) is not None else scaling
    return reading.fields.inside(own).positive(name, reading.context)


def _rotated(reading: _Reading, field: str, scaling: dict[str, Any]) -> int:
    """Elements of a head that are rotated."""
    name, fields = "partial_rotary_factor", reading.fields
    inside = f"{field}.{name}" if name in scaling else name
    default = reading.family.ropes.partial
    if scaling.get(name) is None:
        scaling = fields.raw
    share = fields.inside(scaling).number(name, 1.0 if default is None else default)
    if default is None and share != 1.0:
        fields.refuse(inside, "is not 1")
    dim = int(reading.head_dim * share)
    if dim % 2 or not 0 < dim <= reading.head_dim:
        fields.refuse(inside, f"{share} rotates {dim} of {reading.head_dim} elements of a head")
    return dim
