"""The form that each matrix of a model gets when it is quantized to int8 or int4.

Attention's and feed-forward's output products have as many segments as their depth allows, so that a later split of
their inputs among ranks changes no bit. The embedding and the head are int8 in both: they decide which token comes next,
and four bits there cost more quality than they save time."""

from baton_kernels import Form, most_segments
from engine.formats.errors import ModelError

TARGETS = ("int8", "int4")
RECIPE = 1  # raised whenever the rounding changes; part of the numerics class
_GROUPS = (128, 64, 32)
_SPLIT = ("o", "down")
_EDGES = ("embed", "head")


def segments_of(name: str, k: int, group: int) -> int:
    """`name`: of the fused tensor, as `engine/model/layout.py` calls it."""
    return most_segments(k, group) if name.rpartition(".")[2] in _SPLIT else 1


def target_form(target: str, name: str, k: int) -> Form:
    """`name`: of the fused tensor, as `engine/model/layout.py` calls it."""
    part = name.rpartition(".")[2]
    if target == "int8" or part in _EDGES:
        return Form("int8", segments=segments_of(name, k, 0))
    for group in _GROUPS:
        segments = segments_of(name, k, group)
        if k % group == 0 and -(-k // 64) * 64 // segments % group == 0:
            return Form("int4", group=group, segments=segments)
    problem = f"{name} has {k} inputs, which no group of {', '.join(map(str, _GROUPS))} divides"
    raise ModelError("configuration", "quantize", problem, 'Use "int8".')
