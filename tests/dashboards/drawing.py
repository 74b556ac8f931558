"""A whole dashboard as one SVG: each panel as a card where Grafana places it, with its live series.

Grafana itself is not needed: the layout, titles, units and colours are those of the dashboard's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.dashboards.board import Board, BoardPanel
from tests.dashboards.charts import DrawnSeries, PlotArea, bars, heat, lines, number, stack
from tests.dashboards.scale import long_unit, shown
from tests.dashboards.svg import Picture, fitted, text_width
from tests.dashboards.waterfall import waterfall

COLUMN, ROW_HEIGHT, MARGIN, TOP = 50.0, 30.0, 14.0, 52.0
HEADING, GAP = 30.0, 8.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A panel with what its queries returned."""

    panel: BoardPanel
    series: Sequence[DrawnSeries] = ()
    exemplars: Sequence[tuple[float, float]] = ()  # (time, value)
    traces: Sequence[
        Mapping[str, Any]
    ] = ()  # for a panel that asks the trace store: first one request with its spans, then a list


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
    unit = long_unit(panel.unit) if panel.kind == "timeseries" and panel.stacked != "percent" else ""
    picture.text(x + 12, y + 20, fitted(panel.title, w - 28 - text_width(unit), 13), "text head")
    if unit:
        picture.text(x + w - 12, y + 20, unit, "soft end")
    frame = PlotArea(x + 12, y + HEADING + 4, w - 24, h - HEADING - 12, begin, end)
    if panel.kind == "text":
        _paragraph(picture, frame, panel.text)
    elif not (answered.series or answered.traces):
        picture.text(x + w / 2, y + h / 2, "no data", "bad mid")
    elif panel.kind == "traces":
        waterfall(picture, frame, answered.traces[0]["spans"])
    elif answered.traces:
        _table(picture, frame, answered.traces[1:])
    else:
        _chart(picture, frame, answered)


def _chart(picture: Picture, frame: PlotArea, answered: Answered) -> None:
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


def _table(picture: Picture, frame: PlotArea, traces: Sequence[Mapping[str, Any]]) -> None:
    columns = ("trace", 0.0), ("request", 0.3), ("path", 0.52), ("status", 0.64), ("first token", 0.76), ("whole", 0.9)
    for name, place in columns:
        picture.text(frame.x + frame.w * place, frame.y + 6, name, "soft")
    for row, one in enumerate(traces[: int((frame.h - 8) / 17)]):
        first = shown(one["ttft_seconds"], "s") if one["ttft_seconds"] is not None else "–"
        whole = shown(one["seconds"], "s")
        cells = one["trace_id"], one["request_id"], one["path"] or "–", one["status"], first, whole
        for (_, place), cell in zip(columns, cells, strict=True):
            picture.text(frame.x + frame.w * place, frame.y + 24 + 17 * row, str(cell), "text", size=10.5)


def _paragraph(picture: Picture, frame: PlotArea, text: str) -> None:
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
