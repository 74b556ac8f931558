"""Layers are reported in groups: their size by the number of rows, their order, and the thread that hears of them."""

import asyncio
import threading

import pytest

from engine.step.layer_groups import LayerGroups, on_this_loop, unreported

KIB = 1024


def reported(groups: LayerGroups, rows: int) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    written = groups.reporting(rows, lambda first, count: seen.append((first, count)))
    for layer in range(groups.layers):
        written(layer)
    return seen


@pytest.mark.parametrize(
    ("layers", "fixed", "expected"),
    [
        (1, None, [(0, 1)]),
        (5, None, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]),
        (8, None, [(0, 2), (2, 2), (4, 2), (6, 2)]),
        (5, 2, [(0, 2), (2, 2), (4, 1)]),
        (5, 9, [(0, 5)]),
    ],
)
def test_a_step_of_many_rows_reports_a_quarter_of_the_layers_at_once_or_as_many_as_are_set(
    layers: int, fixed: int | None, expected: list[tuple[int, int]]
) -> None:
    assert reported(LayerGroups(layers, KIB, fixed), rows=4096) == expected


@pytest.mark.parametrize(("rows", "size"), [(1, 12), (16, 12), (22, 12), (24, 11), (36, 8), (42, 7), (43, 6), (512, 6)])
def test_a_group_of_few_rows_has_more_layers_but_never_more_than_half(rows: int, size: int) -> None:
    assert LayerGroups(24, KIB).size(rows) == size


def test_a_group_is_reported_with_its_last_layer_and_not_before() -> None:
    seen: list[tuple[int, int]] = []
    written = LayerGroups(3, KIB, 2).reporting(1, lambda first, count: seen.append((first, count)))
    for layer, so_far in enumerate([0, 1, 2]):
        written(layer)
        assert len(seen) == so_far
    assert unreported(0) is None  # type: ignore[func-returns-value]


def test_a_report_from_another_thread_reaches_the_event_loop() -> None:
    heard: list[tuple[int, int, int]] = []

    async def main() -> None:
        report = on_this_loop(lambda first, count: heard.append((first, count, threading.get_ident())))
        assert report is not None
        await asyncio.to_thread(report, 2, 3)
        await asyncio.sleep(0)
        assert on_this_loop(None) is None

    asyncio.run(main())
    assert heard == [(2, 3, threading.get_ident())]
