"""Sliding windows: which layers have one, and how many tokens it shows.

A token at position p sees itself and the `window` - 1 tokens before it. A window that is at least as long as the served
context hides nothing, so it is none. Families without windows refuse a field that asks for one."""

from engine.families.family import Family, Windows
from engine.families.fields import DAMAGED, ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def sliding_layers(fields: ConfigFields, family: Family) -> tuple[bool, ...]:
    """For each layer whether `layer_types` gives it a window; without that field, whether the family does."""
    layers = fields.positive("num_hidden_layers")
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        if not family.window_period:
            return (True,) * layers
        period = family.window_period
        if family.period_field:
            period = fields.positive(family.period_field, period)
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {_FULL, _SLIDING}:
        fields.refuse("layer_types", f"is not a list of {_FULL} and {_SLIDING} for {layers} layers")
    return tuple(kind == _SLIDING for kind in kinds)


def read_windows(fields: ConfigFields, family: Family, served: int) -> tuple[int, ...]:
    """For each layer how many slots a token sees, 0: all; empty where no window hides a token. `served`: no request has
    more tokens."""
    layers = _layers_with_windows(fields, family)
    window = fields.raw.get("sliding_window", family.default_window)
    if window is None or not any(layers):
        return ()
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        fields.refuse("sliding_window", f"{window!r} is not a positive whole number", DAMAGED)
    if window >= served:
        return ()
    if family.windows is Windows.NONE:
        problem = f"sliding window attention ({window} of {served} tokens) is nothing that this family computes"
        remedy = f"Set context_tokens to at most {window}: within so many tokens the window hides nothing."
        fields.refuse("sliding_window", problem, remedy)
    return tuple(window if has else 0 for has in layers)


def _layers_with_windows(fields: ConfigFields, family: Family) -> tuple[bool, ...]:
    layers, kinds = fields.positive("num_hidden_layers"), fields.raw.get("layer_types")
    if family.windows is Windows.TYPED:
        return sliding_layers(fields, family)
    used = family.windows is Windows.SWITCHED and fields.flag("use_sliding_window", False)
    if used and kinds is not None:
        return sliding_layers(fields, family)
    if isinstance(kinds, list) and any(kind != _FULL for kind in kinds):
        fields.refuse("layer_types", f"names {_SLIDING}, for which the family and its other fields have no window")
    if family.windows is Windows.SWITCHED:
        first = fields.raw.get("max_window_layers", 28)
        if used and (not isinstance(first, int) or isinstance(first, bool) or first < 0):
            fields.refuse("max_window_layers", f"{first!r} is not a whole number of layers", DAMAGED)
        return tuple(used and layer >= first for layer in range(layers))
    return (True,) * layers
