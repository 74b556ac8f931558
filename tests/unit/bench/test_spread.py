"""Figures that were measured several times."""

from random import Random
from statistics import median

import pytest

from bench.spread import median_interval


@pytest.mark.parametrize("count", [9, 31, 60])
def test_the_interval_of_a_median_holds_the_true_median_in_95_of_100_cases(count: int) -> None:
    random, found = Random(7), 0
    for _ in range(1000):
        low, high = median_interval([random.lognormvariate(0, 1) for _ in range(count)])
        found += low <= 1.0 <= high
    assert 940 <= found <= 995


def test_the_interval_of_a_median_narrows_with_more_values() -> None:
    random = Random(7)
    few, many = ([random.gauss(1, 0.1) for _ in range(count)] for count in (15, 301))
    widths = [high - low for low, high in (median_interval(few), median_interval(many))]
    assert widths[1] < widths[0] / 3
    assert median_interval(many)[0] < median(many) < median_interval(many)[1]


def test_a_single_value_is_its_own_interval() -> None:
    assert median_interval([2.0]) == (2.0, 2.0)
