"""Draws a run as one SVG: TTFT and ITL over time, their distributions, and every request as a bar."""

from collections.abc import Sequence
from html import escape
from typing import TypeVar

from cli.load.record import MeasuredRequest
from cli.load.statistics import LatencyLimits, percentile
from cli.load.svg_panel import BOTTOM, STYLE, TOP, Scale, SvgPanel, clean, text, time_label

WIDTH, MARGIN, GAP, HEAD = 980, 16, 14, 62
PANEL_WIDTH, PANEL_HEIGHT = (WIDTH - 2 * MARGIN - GAP) / 2, 210
BINS = 60  # intervals that the timeline of gaps is cut into
MOST_DOTS, MOST_BARS, MOST_CURVE = 1500, 150, 200
FAILED_WIDTH = 5.0  # in pixels: a request that fails at once is seen, too
LEAST_SECONDS = 1e-5  # the left end of a logarithmic axis

Item = TypeVar("Item")
Points = list[tuple[float, float]]


def draw_run(records: Sequence[MeasuredRequest], limits: LatencyLimits, *, title: str, subtitle: str) -> str:
    """The whole picture; `records` may be empty or hold failures only."""
    origin = min((record.scheduled for record in records), default=0.0)
    end = max((record.ended - origin for record in records if record.ended is not None), default=0.0)
    time = Scale(0.0, max(end, 1e-3))
    finished = [record for record in records if record.finished]
    right, second = MARGIN + PANEL_WIDTH + GAP, HEAD + PANEL_HEIGHT + GAP
    bars = thinned(records, MOST_BARS)
    bars_top = second + PANEL_HEIGHT + GAP
    bars_height = TOP + BOTTOM + max(80, min(420, 9 * len(bars)))
    height = bars_top + bars_height + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(clean(title))}</title><style>{STYLE}</style>',
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        text(MARGIN, 30, title, "head"),
        text(MARGIN, 50, subtitle, "muted"),
        *_first_tokens(finished, origin, time, limits, MARGIN, HEAD),
        *_gaps(finished, origin, time, limits, right, HEAD),
        *_distribution("Share within TTFT and E2E", _latencies(finished), limits.ttft, MARGIN, second),
        *_distribution("Share within ITL and TPOT", _paces(finished), limits.itl, right, second),
        *_bars(bars, len(records), origin, time, bars_top, bars_height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _first_tokens(
    finished: Sequence[MeasuredRequest], origin: float, time: Scale, limits: LatencyLimits, left: float, top: float
) -> list[str]:
    points = [(each.scheduled - origin, each.ttft) for each in finished if each.ttft is not None]
    highest = max([y for _, y in points] + [limits.ttft or 0.0, 1e-4])
    panel = SvgPanel(left, top, PANEL_WIDTH, PANEL_HEIGHT, time, Scale(0.0, highest * 1.05))
    return [
        *panel.frame("Time to first token, by scheduled time", time_label, time_label),
        *panel.dots(thinned(points, MOST_DOTS), "a"),
        *panel.limit_at_y(limits.ttft),
    ]


def _gaps(
    finished: Sequence[MeasuredRequest], origin: float, time: Scale, limits: LatencyLimits, left: float, top: float
) -> list[str]:
    bins: list[list[float]] = [[] for _ in range(BINS)]
    for each in finished:
        for at, gap in zip(each.chunks[1:], each.gaps, strict=True):
            bins[min(BINS - 1, int(time.place(at - origin) * BINS))].append(gap)
    middles = [(number + 0.5) / BINS * time.high for number in range(BINS)]
    curves = {
        share: [(at, percentile(gaps, share)) for at, gaps in zip(middles, bins, strict=True) if gaps]
        for share in (50, 99)
    }
    highest = max([y for _, y in curves[99]] + [limits.itl or 0.0, 1e-4])
    panel = SvgPanel(left, top, PANEL_WIDTH, PANEL_HEIGHT, time, Scale(0.0, highest * 1.05))
    return [
        *panel.frame("Inter-token latency over time", time_label, time_label),
        *panel.curve(curves[99], "b"),
        *panel.curve(curves[50], "a"),
        *panel.limit_at_y(limits.itl),
        panel.legend([("p50", "a"), ("p99", "b")]),
    ]


def _latencies(finished: Sequence[MeasuredRequest]) -> dict[str, list[float]]:
    return {
        "TTFT": [each.ttft for each in finished if each.ttft is not None],
        "E2E": [each.e2e for each in finished if each.e2e is not None],
    }


def _paces(finished: Sequence[MeasuredRequest]) -> dict[str, list[float]]:
    return {
        "ITL": [gap for each in finished for gap in each.gaps],
        "TPOT": [each.tpot for each in finished if each.tpot is not None],
    }


def _distribution(
    title: str, series: dict[str, list[float]], limit: float | None, left: float, top: float
) -> list[str]:
    values = [max(value, LEAST_SECONDS) for each in series.values() for value in each]
    low, high = (min(values), max(values)) if values else (0.001, 1.0)
    panel = SvgPanel(left, top, PANEL_WIDTH, PANEL_HEIGHT, Scale(low * 0.9, high * 1.1, log=True), Scale(0.0, 1.0))
    marks = panel.frame(title, time_label, lambda share: f"{share:.0%}")
    for (_, each), style in zip(series.items(), ("a", "b"), strict=True):
        marks += panel.curve(cumulative(each), style)
    return [*marks, *panel.limit_at_x(limit), panel.legend(list(zip(series, ("a", "b"), strict=True)))]


def cumulative(values: Sequence[float]) -> Points:
    """Points (value, share of values up to it), at most MOST_CURVE of them."""
    ordered = sorted(values)
    shares = [(max(value, LEAST_SECONDS), (rank + 1) / len(ordered)) for rank, value in enumerate(ordered)]
    return thinned(shares, MOST_CURVE)


def _bars(
    bars: Sequence[MeasuredRequest], count: int, origin: float, time: Scale, top: float, height: float
) -> list[str]:
    panel = SvgPanel(MARGIN, top, WIDTH - 2 * MARGIN, height, time, Scale(0.0, max(1, len(bars))))
    title = "Every request" if len(bars) == count else f"{len(bars)} of {count} requests"
    marks = panel.frame(f"{title}, from its scheduled time to its end", time_label, None)
    thickness = (height - TOP - BOTTOM) / max(1, len(bars)) * 0.8
    for row, each in enumerate(bars):
        y, begin = len(bars) - row, each.scheduled - origin
        end = time.high if each.ended is None else each.ended - origin
        first = min(end, end if each.first is None else each.first - origin)
        if each.error:
            marks.append(panel.bar(begin, end, y, thickness, "bad", FAILED_WIDTH))
            continue
        marks.append(panel.bar(begin, first, y, thickness, "wait"))
        if end > first:
            marks.append(panel.bar(first, end, y, thickness, "a"))
    return [*marks, panel.legend([("until the first token", "wait"), ("answer", "a"), ("failed", "bad")])]


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the items, evenly chosen, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
