"""Draws the answers of one panel into its card: lines, stacks, single numbers, bars and heat maps.

Each function takes the picture, the rectangle that is left under the card's heading, the panel and its series."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.dashboards.board import BoardPanel
from tests.dashboards.scale import axis_label, marks, shown, ticks
from tests.dashboards.svg import SERIES, Picture, fitted, text_width

# Grafana's colour names, as the dashboards fix them, -> roles of the picture.
GRAFANA_COLOURS = {
    "blue": "s0", "orange": "s1", "green": "s2", "purple": "s4", "yellow": "s6", "red": "s7", "text": "soft",
}  # fmt: skip
LEGEND_LINE, AXIS_LEFT, AXIS_BOTTOM, HEAT_COLUMNS = 15, 48, 16, 40


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: its name and (seconds since the epoch, value) in order of time."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: Mapping[str, str]

    @property
    def last(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Frame:
    """A rectangle of the picture, and the stretch of time that its width stands for."""

    x: float
    y: float
    w: float
    h: float
    begin: float
    end: float

    def at(self, time: float) -> float:
        return self.x + self.w * (time - self.begin) / max(self.end - self.begin, 1e-9)


def lines(
    picture: Picture,
    frame: Frame,
    panel: BoardPanel,
    series: Sequence[Series],
    exemplars: Sequence[tuple[float, float]] = (),
) -> None:
    """A line per series; exemplars, which are single requests with a trace, are dots."""
    plot = _under(picture, frame, panel, series)
    high = max((value for points in (*(each.points for each in series), exemplars) for _, value in points), default=0)
    top = _axes(picture, plot, panel, panel.most or high)
    for place, each in enumerate(series):
        role = role_of(panel, each.name, place)
        for run in _runs(each.points):
            points = [(plot.at(time), _height(plot, value, top)) for time, value in run]
            if len(points) == 1:
                picture.dot(*points[0], role)
            else:
                picture.line(points, f"{role} line")
    for limit, colour in panel.limits:
        if 0 < limit < top:
            y = _height(plot, limit, top)
            picture.line([(plot.x, y), (plot.x + plot.w, y)], f"{GRAFANA_COLOURS[colour]} thin dashed")
    for time, value in exemplars:
        picture.dot(plot.at(time), _height(plot, value, top), "s3")


def stack(picture: Picture, frame: Frame, panel: BoardPanel, series: Sequence[Series]) -> None:
    """Areas upon each other. A series that has no value at some time counts as zero there."""
    plot = _under(picture, frame, panel, series)
    times = sorted({time for each in series for time, _ in each.points})
    values = [dict(each.points) for each in series]
    sums = {time: sum(one.get(time, 0.0) for one in values) for time in times}
    share = panel.stacked == "percent"
    top = _axes(picture, plot, panel, 1.0 if share else (panel.most or max(sums.values(), default=0)))
    runs = _runs([(time, sums[time]) for time in times if sums[time] > 0 or not share])
    for run in runs:
        below = {time: 0.0 for time, _ in run}
        for place, one in enumerate(values):
            above = {t: below[t] + one.get(t, 0.0) / (total if share else 1.0) for t, total in run}
            if any(above[t] > below[t] for t in above):
                edge = [(plot.at(t), _height(plot, above[t], top)) for t in above]
                base = [(plot.at(t), _height(plot, below[t], top)) for t in reversed(below)]
                picture.area([*edge, *base], role_of(panel, series[place].name, place))
            below = above


def number(picture: Picture, frame: Frame, panel: BoardPanel, series: Sequence[Series]) -> None:
    """The last value of each series, large, above its course."""
    width = frame.w / max(len(series), 1)
    for place, each in enumerate(series):
        left, middle = frame.x + width * place, frame.x + width * (place + 0.5)
        role = _number_role(panel, each, place)
        high = max((value for _, value in each.points), default=0) or 1.0
        low_frame = Frame(left + 4, frame.y + frame.h * 0.58, width - 8, frame.h * 0.36, frame.begin, frame.end)
        course = [(low_frame.at(t), low_frame.y + low_frame.h * (1 - v / high)) for t, v in each.points]
        if len(course) > 1:
            floor = low_frame.y + low_frame.h
            picture.rect(course[0][0], floor, course[-1][0] - course[0][0], 0.8, "grid flat")
            picture.line(course, f"{role} line")
        size = min(26.0, frame.h * 0.34, 1.7 * width / max(len(shown(each.last, panel.unit)), 4))
        picture.text(middle, frame.y + frame.h * 0.36, shown(each.last, panel.unit), f"{role} mid big", size=size)
        if len(series) > 1:
            picture.text(middle, frame.y + frame.h * 0.55, fitted(each.name, width - 6, 10), "soft mid", size=10)


def bars(picture: Picture, frame: Frame, panel: BoardPanel, series: Sequence[Series]) -> None:
    """The last value of each series as a horizontal bar."""
    top = panel.most or max((each.last for each in series), default=0) or 1.0
    names = min(frame.w * 0.38, max((text_width(each.name) for each in series), default=0) + 10)
    row = min(24.0, frame.h / max(len(series), 1))
    length = frame.w - names - 74
    for place, each in enumerate(series):
        y = frame.y + row * place
        picture.text(frame.x + 2, y + row * 0.66, fitted(each.name, names), "soft")
        picture.rect(frame.x + names, y + row * 0.2, length, row * 0.6, "grid flat", round_by=3)
        share = min(1.0, max(0.0, each.last / top))
        picture.rect(
            frame.x + names,
            y + row * 0.2,
            length * share,
            row * 0.6,
            f"{_number_role(panel, each, place)} flat",
            round_by=3,
        )
        picture.text(frame.x + frame.w - 2, y + row * 0.66, shown(each.last, panel.unit), "text end")


def heat(picture: Picture, frame: Frame, panel: BoardPanel, series: Sequence[Series]) -> None:
    """Buckets of a histogram upon each other, from the fastest to the slowest; darker means more."""
    rows = [(bound, counts) for bound, counts in _bucket_counts(series) if any(counts.values())]
    plot = Frame(frame.x + AXIS_LEFT, frame.y, frame.w - AXIS_LEFT - 4, frame.h - AXIS_BOTTOM, frame.begin, frame.end)
    _times(picture, plot)
    most = max((count for _, counts in rows for count in counts.values()), default=0) or 1.0
    height, step = plot.h / max(len(rows), 1), plot.w / HEAT_COLUMNS
    for place, (bound, counts) in enumerate(rows):
        y = plot.y + plot.h - height * (place + 1)
        if height >= 10 or place % 2 == 0:
            label = f"≤ {shown(bound, panel.unit)}" if math.isfinite(bound) else "more"
            picture.text(plot.x - 6, y + height * 0.5 + 4, label, "soft end", size=10)
        for column in range(HEAT_COLUMNS):
            begin, end = (plot.begin + (plot.end - plot.begin) * part / HEAT_COLUMNS for part in (column, column + 1))
            inside = [count for time, count in counts.items() if begin <= time < end]
            if any(inside):
                share = (sum(inside) / len(inside) / most) ** 0.5
                picture.rect(
                    plot.x + step * column, y + 0.5, step - 0.6, height - 1, "s0 flat", opacity=0.15 + 0.85 * share
                )


def _bucket_counts(series: Sequence[Series]) -> list[tuple[float, dict[float, float]]]:
    """Upper bound of each bucket, and at each time what it holds alone: Prometheus' buckets include the lower ones."""
    found, below = list[tuple[float, dict[float, float]]](), dict[float, float]()
    for each in sorted(series, key=lambda each: _bound(each.name)):
        sums = dict(each.points)
        found.append((_bound(each.name), {t: max(0.0, value - below.get(t, 0.0)) for t, value in sums.items()}))
        below = sums
    return found


def role_of(panel: BoardPanel, name: str, place: int) -> str:
    return GRAFANA_COLOURS.get(panel.colours.get(name, ""), f"s{place % SERIES}")


def _number_role(panel: BoardPanel, series: Series, place: int) -> str:
    """The colour of a number: that of the limit that it has reached, or its series' own."""
    if not panel.by_limits:
        return role_of(panel, series.name, place)
    reached = [colour for limit, colour in panel.limits if series.last >= limit]
    return GRAFANA_COLOURS[reached[-1]]


def _under(picture: Picture, frame: Frame, panel: BoardPanel, series: Sequence[Series]) -> Frame:
    """Draws the legend at the bottom and returns the frame of the plot above it."""
    entries, row, x = list[tuple[float, int, int]](), 0, frame.x
    for place, each in enumerate(series):
        width = min(text_width(each.name), frame.w * 0.6) + 22
        if x + width > frame.x + frame.w and x > frame.x:
            row, x = row + 1, frame.x
        entries.append((x, row, place))
        x += width
    rows = min(row + 1, 3) if series else 0
    top = frame.y + frame.h - rows * LEGEND_LINE
    for x, row, place in entries:
        if row < 3:
            name = series[place].name
            picture.rect(x + 2, top + row * LEGEND_LINE + 4, 9, 4, f"{role_of(panel, name, place)} flat", round_by=2)
            picture.text(x + 15, top + row * LEGEND_LINE + 10, fitted(name, frame.w * 0.6), "soft", size=10.5)
    height = frame.h - rows * LEGEND_LINE - AXIS_BOTTOM - 4
    return Frame(frame.x + AXIS_LEFT, frame.y, frame.w - AXIS_LEFT - 4, height, frame.begin, frame.end)


def _axes(picture: Picture, plot: Frame, panel: BoardPanel, high: float) -> float:
    """Draws the grid; returns the value at its upper edge."""
    unit = "percentunit" if panel.stacked == "percent" else panel.unit
    grid = marks(high, unit, 4 if plot.h > 90 else 2)
    for mark in grid:
        y = _height(plot, mark, grid[-1])
        picture.line([(plot.x, y), (plot.x + plot.w, y)], "grid thin")
        picture.text(plot.x - 6, y + 3.5, axis_label(mark, unit), "soft end", size=10)
    _times(picture, plot)
    return grid[-1]


def _times(picture: Picture, plot: Frame) -> None:
    seconds = plot.end - plot.begin
    for mark in ticks(seconds, max(3, int(plot.w / 90))):
        if mark <= seconds:
            picture.text(plot.at(plot.begin + mark), plot.y + plot.h + 14, shown(mark, "s"), "soft mid", size=10)


def _height(plot: Frame, value: float, top: float) -> float:
    return plot.y + plot.h * (1 - min(max(value, 0.0), top) / top)


def _runs(points: Sequence[tuple[float, float]], gap: float = 5.0) -> list[list[tuple[float, float]]]:
    """Stretches without a pause: a series that vanished and came back is not joined by a line."""
    runs = list[list[tuple[float, float]]]()
    for point in points:
        if runs and point[0] - runs[-1][-1][0] <= gap:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _bound(name: str) -> float:
    return float(name.replace("+Inf", "inf"))
