"""Sliding windows: which layers have one, and the refusal of those that would hide a token within the context.

Attention sees every token. A window that is at least as long as the context hides nothing, so it is no obstacle."""

from engine.families.family import Family, Windows
from engine.families.fields import OTHER, ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def sliding_layers(fields: ConfigFields, family: Family) -> tuple[bool, ...]:
    """For each layer whether `layer_types` gives it a window."""
    layers = fields.positive("num_hidden_layers")
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        if not family.window_period:
            return (False,) * layers
        period = family.window_period
        if family.period_field:
            period = fields.positive(family.period_field, period)
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {_FULL, _SLIDING}:
        fields.refuse("layer_types", f"is not a list of {_FULL} and {_SLIDING} for {layers} layers")
    return tuple(kind == _SLIDING for kind in kinds)


def refuse_windows(fields: ConfigFields, family: Family, context: int) -> None:
    """Refuses attention that sees only the last tokens, unless the window is as long as the context."""
    kinds = fields.raw.get("layer_types")
    if family.windows is not Windows.TYPED and isinstance(kinds, list) and any(kind != _FULL for kind in kinds):
        fields.refuse("layer_types", "sliding window attention is not supported")
    window, field = fields.raw.get("sliding_window", family.default_window), "sliding_window"
    if family.windows is Windows.SWITCHED:
        field, windowed = "use_sliding_window", fields.flag("use_sliding_window", False)
        first = fields.raw.get("max_window_layers", 28)
        none = isinstance(first, int) and first >= fields.positive("num_hidden_layers")
        window = window if windowed and kinds is None and not none else None
    if family.windows is Windows.TYPED and not any(sliding_layers(fields, family)):
        window = None
    if window is None or (isinstance(window, int) and window >= context):
        return
    missing = "" if field in fields.raw else f"; without the field transformers takes {family.default_window}"
    problem = f"sliding window attention ({window} of {context} tokens) is not supported{missing}"
    remedy = f"Set context_tokens to at most {window}: within so many tokens the window hides nothing."
    fields.refuse(field, problem, remedy if isinstance(window, int) and window > 0 else OTHER)
