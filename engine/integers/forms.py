"""The form that each matrix of a model gets when it is quantized to int8 or int4.

Groups are short, because activations have outliers: each group of a row has a scale of its own. Attention's and
feed-forward's output products have as many segments as their depth allows, so that a later split of their inputs among
ranks changes no bit. The embedding, the head and attention's matrices are int8 in both: they are few of the weights,
and four bits there cost more quality than they save time."""

from baton_kernels import MatrixForm, most_segments

RECIPE = 4  # raised whenever the rounding changes; part of the numerics class
_INT8_GROUPS, _INT4_GROUPS = (128, 64, 32, 16), (32,)
_HANDED_ON = (
    64  # columns that the product with the gate packs at a time for the one behind it, whose groups are no longer
)
_SPLIT = ("o", "down")
_FINE = ("embed", "head", "qkv", "o")


def segments_of(name: str, k: int, group: int) -> int:
    """`name`: of the fused tensor, as `engine/model/layout.py` calls it."""
    return most_segments(k, group) if name.rpartition(".")[2] in _SPLIT else 1


def target_form(target: str, name: str, k: int) -> MatrixForm:
    """A matrix whose inputs no group divides has more bits than asked for, or a scale per row."""
    if target == "int4" and name.rpartition(".")[2] not in _FINE and (group := _group(_INT4_GROUPS, name, k)):
        return MatrixForm("int4", group=group, segments=segments_of(name, k, group))
    if group := _group(_INT8_GROUPS, name, k):
        return MatrixForm("int8-groups", group=group, segments=segments_of(name, k, group))
    return MatrixForm("int8", segments=segments_of(name, k, 0))


def _group(groups: tuple[int, ...], name: str, k: int) -> int:
    """The longest group, of two or more, that divides the inputs, padded to whole vectors, and each of as many segments
    as there can be; 0: none does."""
    padded, most = -(-k // 64) * 64, segments_of(name, k, 0)
    longest = _HANDED_ON if name.endswith("down") else groups[0]
    return next((g for g in groups if longest >= g < k and k % g == 0 and padded // most % g == 0), 0)
