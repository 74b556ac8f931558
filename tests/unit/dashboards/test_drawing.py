"""Drawn dashboards: every panel has its card, numbers have readable units, and both colour schemes are there."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.__main__ import MOST_PICTURE_BYTES
from tests.dashboards.board import Board, BoardPanel, read_boards
from tests.dashboards.charts import DrawnSeries
from tests.dashboards.drawing import Answered, draw
from tests.dashboards.scale import marks, shown, ticks
from tests.dashboards.svg import COLOURS
from tests.dashboards.waterfall import in_order

PICTURES = Path(__file__).resolve().parents[3] / "docs/pictures"
TEXT = "{http://www.w3.org/2000/svg}text"
REQUEST: dict[str, Any] = {
    "trace_id": "4bf92f35",
    "request_id": "r1",
    "path": "remote",
    "status": "ok",
    "seconds": 0.2,
    "ttft_seconds": None,
    "spans": [
        {"service": "gateway", "name": "chat", "span_id": "a", "parent_id": "", "start_ms": 0.0, "duration_ms": 200.0},
        {"service": "decode", "name": "decode", "span_id": "c", "parent_id": "a", "start_ms": 90.0, "duration_ms": 9.0},
        {
            "service": "prefill",
            "name": "prefill",
            "span_id": "b",
            "parent_id": "a",
            "start_ms": 9.0,
            "duration_ms": 80.0,
        },
        {
            "service": "prefill",
            "name": "compute",
            "span_id": "d",
            "parent_id": "b",
            "start_ms": 9.0,
            "duration_ms": 70.0,
        },
        {"service": "other", "name": "orphan", "span_id": "e", "parent_id": "zz", "start_ms": 1.0, "duration_ms": 1.0},
    ],
}


def answered(panel: BoardPanel) -> Answered:
    points = tuple((float(second), second / 10) for second in range(0, 60, 2))
    series = [
        DrawnSeries(name, points, {})
        for name in (("0.1", "0.5", "+Inf") if panel.kind == "heatmap" else ("one", "<two>"))
    ]
    if any(query.source != "prometheus" for query in panel.queries):
        return Answered(panel, traces=[REQUEST])
    return Answered(panel, series if panel.queries else (), exemplars=[(10.0, 3.0)])


@pytest.mark.parametrize("board", read_boards(), ids=lambda board: board.name)
def test_every_committed_dashboard_is_drawn_with_all_its_titles(board: Board) -> None:
    picture = draw(board, [answered(panel) for panel in board.panels], 0.0, 60.0)
    texts = [element.text or "" for element in ElementTree.fromstring(picture).iter(TEXT)]
    for panel in board.panels:
        assert any(text.rstrip("…") and panel.title.startswith(text.rstrip("…")) for text in texts), panel.title
    assert "no data" not in texts


@pytest.mark.parametrize("board", read_boards(), ids=lambda board: board.name)
def test_the_committed_picture_shows_every_panel_of_the_committed_dashboard(board: Board) -> None:
    path = PICTURES / f"dashboard-{board.name}.svg"
    assert path.stat().st_size < MOST_PICTURE_BYTES
    texts = {(element.text or "").rstrip("…") for element in ElementTree.parse(path).iter(TEXT)} - {""}
    missing = [panel.title for panel in board.panels if not any(panel.title.startswith(text) for text in texts)]
    assert not missing, "make dashboards-check ARGS='--pictures docs/pictures'"
    assert "no data" not in texts


def test_a_panel_without_data_says_so() -> None:
    board = read_boards()[0]
    panel = next(panel for panel in board.panels if panel.kind == "timeseries")
    assert "no data" in draw(replace(board, panels=(panel,)), [Answered(panel)], 0.0, 60.0)


def test_every_colour_has_a_light_and_a_dark_value_and_the_picture_holds_both() -> None:
    board = read_boards()[0]
    picture = draw(board, [answered(panel) for panel in board.panels], 0.0, 60.0)
    assert "prefers-color-scheme:dark" in picture
    for light, dark in COLOURS.values():
        assert light != dark and light in picture and dark in picture


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.0, "s", "0 s"),
        (150.0, "s", "2.5 min"),
        (0.5, "percentunit", "50%"),
        (1536.0, "bytes", "1.5 KiB"),
        (3 * 1024.0**2, "Bps", "3 MiB/s"),
        (1500.0, "suffix: tokens/s", "1.5 k tokens/s"),
        (0.25, "reqps", "0.25 requests/s"),
        (float("nan"), "s", "–"),
    ],
)
def test_a_value_is_written_with_its_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


@pytest.mark.parametrize("high", [0.0, 0.003, 0.7, 1.0, 17.0, 4096.0, 1e7])
def test_ticks_begin_at_zero_and_reach_the_highest_value(high: float) -> None:
    found = ticks(high)
    assert found[0] == 0 and found[-1] >= high * 0.999 and 2 <= len(found) <= 6


def test_ticks_of_bytes_are_round_in_powers_of_1024() -> None:
    assert marks(3.5 * 1024**2, "bytes")[1] == 1024**2


def test_a_waterfall_lists_children_below_their_parent_in_order_of_time() -> None:
    rows = [(depth, row[0]["name"]) for depth, row in in_order(REQUEST["spans"])]
    assert rows == [(0, "chat"), (1, "prefill"), (2, "compute"), (1, "decode"), (0, "orphan")]


def test_many_leaves_of_one_name_share_a_row() -> None:
    blocked = [
        {
            "service": "gateway",
            "name": "loop.blocked",
            "span_id": f"x{n}",
            "parent_id": "a",
            "start_ms": 20.0 * n,
            "duration_ms": 1,
        }
        for n in range(4)
    ]
    rows = [(row[0]["name"], len(row)) for _, row in in_order([*REQUEST["spans"], *blocked])]
    assert ("loop.blocked", 4) in rows and ("prefill", 1) in rows and len(rows) == 6
