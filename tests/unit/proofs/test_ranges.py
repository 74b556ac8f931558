"""Ranges of numbers: none is counted twice."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.proofs.ranges import first_gap, merged, total, without

numbers = st.integers(0, 30)
ranges = st.lists(st.tuples(numbers, numbers), max_size=8)


def members(found: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in found for number in range(first, end)}


@given(ranges)
def test_merged_ranges_hold_the_same_numbers_once(given_ranges: list[tuple[int, int]]) -> None:
    found = merged(given_ranges)
    assert members(found) == members(given_ranges) and total(given_ranges) == len(members(found))
    assert all(end < first for (_, end), (first, _) in pairwise(found))


@given(ranges, numbers, st.integers(1, 10))
def test_a_gap_holds_the_first_numbers_that_are_not_taken(taken: list[tuple[int, int]], end: int, most: int) -> None:
    gap, free = first_gap(taken, end, most), [number for number in range(end) if number not in members(taken)]
    assert (gap is None) == (not free)
    if gap is not None:
        assert list(range(*gap)) == free[: gap[1] - gap[0]] and gap[1] - gap[0] <= most


@given(st.tuples(numbers, numbers), ranges)
def test_what_is_left_of_a_range_is_in_none_of_the_others(whole: tuple[int, int], gone: list[tuple[int, int]]) -> None:
    assert members(without(whole, gone)) == members([whole]) - members(gone)
