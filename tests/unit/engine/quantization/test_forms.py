"""Which form each matrix of a model gets when it is rounded."""

import pytest

from baton_kernels import most_segments
from engine.integers.forms import target_form

KINDS = ("qkv", "o", "gate_up", "down", "head")
PLACES = [  # matrix, its inputs, and the group and segments of eight bits
    ("qkv", 896, 128, 1),
    ("gate_up", 4096, 128, 1),
    ("o", 4096, 128, 8),
    ("o", 896, 64, 2),  # 896 / 2 is no multiple of 128
    ("down", 4864, 64, 4),
    ("down", 4096, 64, 8),  # what the gate hands on, it packs 64 columns at a time
    ("experts_down", 4096, 64, 1),
    ("down", 1536, 64, 8),
    ("qkv", 128, 64, 1),  # one group for all inputs would be a scale per output
    ("qkv", 64, 32, 1),
    ("down", 176, 16, 1),
    ("qkv", 72, 0, 1),
]


@pytest.mark.parametrize(("matrix", "inputs", "group", "segments"), PLACES)
def test_groups_of_eight_bits_are_as_long_as_inputs_and_segments_allow(
    matrix: str, inputs: int, group: int, segments: int
) -> None:
    form = target_form("int8", f"layers.0.{matrix}", inputs)
    assert (form.scheme, form.group, form.segments) == ("int8-groups" if group else "int8", group, segments)


def test_no_group_costs_a_matrix_a_segment_or_crosses_one() -> None:
    seen = set()
    for inputs in range(16, 8193, 16):
        for matrix in KINDS:
            form = target_form("int8", f"layers.0.{matrix}", inputs)
            assert form.segments == (most_segments(inputs) if matrix in ("o", "down") else 1)
            assert not form.group or (inputs % form.group == 0 and inputs > form.group)
            assert not form.group or -(-inputs // 64) * 64 // form.segments % form.group == 0
            seen.add((form.group, form.segments))
    assert {(128, 8), (128, 1), (64, 2), (16, 1)} <= seen
