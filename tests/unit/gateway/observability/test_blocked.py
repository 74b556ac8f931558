"""Intervals of a blocked loop go into the spans that they interrupt, each moment into one."""

import itertools
from collections.abc import Callable

import pytest

from gateway.tracing import blocked
from mesh.telemetry.spans import SpanRecord


def span(name: str, span_id: int, parent_id: int, start: float, end: float) -> SpanRecord:
    return SpanRecord("prefill-0", name, 1, span_id, parent_id, start, end)


def ids() -> Callable[[str], int]:
    numbers = itertools.count(100)
    return lambda name: next(numbers)


TREE = [
    span("prefill", 1, 9, 0.0, 10.0),
    span("queue", 2, 1, 0.0, 2.0),
    span("compute", 3, 1, 2.0, 6.0),
    span("kv.send", 4, 1, 3.0, 8.0),
]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.5, 1.5), [(2, 0.5, 1.5)]),
        ((1.0, 3.0), [(2, 1.0, 2.0), (3, 2.0, 3.0)]),
        ((5.0, 7.0), [(3, 5.0, 6.0), (4, 6.0, 7.0)]),  # computing has the better claim where both run
        ((7.5, 9.0), [(4, 7.5, 8.0), (1, 8.0, 9.0)]),
        ((9.5, 12.0), [(1, 9.5, 10.0)]),
        ((11.0, 12.0), []),
    ],
)
def test_each_moment_belongs_to_one_span(
    interval: tuple[float, float], expected: list[tuple[int, float, float]]
) -> None:
    found = blocked.spans(TREE, "prefill-0", [interval], ids())
    assert [(one.parent_id, one.start_seconds, one.end_seconds) for one in found] == expected
    assert all(one.name == "loop.blocked" and one.service == "prefill-0" and one.trace_id == 1 for one in found)


def test_several_intervals_get_ids_of_their_own() -> None:
    found = blocked.spans(TREE, "prefill-0", [(0.0, 1.0), (1.5, 1.75)], ids())
    assert [one.span_id for one in found] == [100, 101]
