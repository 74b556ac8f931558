"""A whole dashboard as one SVG: each panel as a card where Grafana places it, with its live series.

Grafana itself is not needed: the layout, titles, units and colours are those of the dashboard's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.board import Board, BoardPanel
from tests.dashboards.charts import Frame, Series, bars, heat, lines, number, stack
from tests.dashboards.svg import Picture, fitted
from tests.dashboards.waterfall import waterfall

COLUMN, ROW_HEIGHT, MARGIN, TOP = 50.0, 30.0, 14.0, 52.0
HEADING, GAP = 30.0, 8.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A panel with what its queries returned."""

    panel: BoardPanel
    series: Sequence[Series] = ()
    exemplars: Sequence[tuple[float, float]] = ()  # (time, value)
    spans: Sequence[Mapping[str, Any]] = field(default=())  # of a panel that shows one request


def draw(board: Board, answers: Sequence[Answered], begin: float, end: float) -> str:
    height = TOP + ROW_HEIGHT * max(a.panel.y + a.panel.height for a in answers) + MARGIN
    picture = Picture(COLUMN * 24 + 2 * MARGIN, height, f"Dashboard: {board.title}")
    picture.rect(0, 0, picture.width, picture.height, "page")
    picture.text(MARGIN + 4, 34, board.title, "text title")
    for answered in answers:
        _card(picture, answered, begin, end)
    return picture.svg()


def _card(picture: Picture, answered: Answered, begin: float, end: float) -> None:
    panel = answered.panel
    x, y = MARGIN + COLUMN * panel.x + GAP / 2, TOP + ROW_HEIGHT * panel.y + GAP / 2
    w, h = COLUMN * panel.width - GAP, ROW_HEIGHT * panel.height - GAP
    if panel.kind == "row":
        picture.text(x + 2, y + 18, panel.title, "text head")
        return
    picture.rect(x, y, w, h, "card", round_by=6)
    picture.text(x + 12, y + 20, fitted(panel.title, w - 20, 13), "text head")
    frame = Frame(x + 12, y + HEADING + 4, w - 24, h - HEADING - 12, begin, end)
    if panel.kind == "text":
        _paragraph(picture, frame, panel.text)
    elif panel.kind == "traces":
        waterfall(picture, frame, answered.spans)
    elif not answered.series:
        picture.text(x + w / 2, y + h / 2, "no data", "bad mid")
    else:
        _chart(picture, frame, answered)


def _chart(picture: Picture, frame: Frame, answered: Answered) -> None:
    panel, series = answered.panel, answered.series
    match panel.kind:
        case "stat":
            number(picture, frame, panel, series)
        case "bargauge":
            bars(picture, frame, panel, series)
        case "heatmap":
            heat(picture, frame, panel, series)
        case "timeseries" if panel.stacked:
            stack(picture, frame, panel, series)
        case "timeseries":
            lines(picture, frame, panel, series, answered.exemplars)
        case kind:
            raise ValueError(f"{panel.title}: panels of type {kind} cannot be drawn")


def _paragraph(picture: Picture, frame: Frame, text: str) -> None:
    y, most = frame.y + 8, int(frame.w / 6.2)
    for paragraph in text.replace("**", "").replace("`", "").split("\n"):
        line = ""
        for word in paragraph.split():
            if len(line) + len(word) + 1 > most:
                picture.text(frame.x, y, line, "soft")
                line, y = "", y + 16
            line = f"{line} {word}".strip()
        picture.text(frame.x, y, line, "soft")
        y += 16
