"""The parts of an SVG picture: a panel with a title, two axes with round ticks, and marks at data coordinates.

Text and colours are classes; `STYLE` gives them a light and a dark form. Nothing is loaded from elsewhere."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
text{font:12px system-ui,sans-serif;fill:var(--text)}.title{font-size:13px;font-weight:600}
.head{font-size:18px;font-weight:600}
.muted{fill:var(--muted)}.page{fill:var(--page)}.panel{fill:var(--panel)}.grid{stroke:var(--grid)}
.limit{stroke:var(--bad);stroke-dasharray:5 4}.a{fill:var(--a)}.b{fill:var(--b)}
.wait{fill:var(--wait)}.bad{fill:var(--bad)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}
.line.a,.line.b{fill:none}
.dot{opacity:.75}
svg{--page:#fff;--panel:#f7f8fa;--text:#1b1f24;--muted:#5c6670;--grid:#dfe3e8;--a:#1f6feb;--b:#c2570c;--wait:#b9c4d0;--bad:#cf222e}
@media(prefers-color-scheme:dark){svg{--page:#0d1117;--panel:#151b23;--text:#e6edf3;--muted:#9aa6b2;--grid:#2b333d;--a:#58a6ff;
--b:#f0a04b;--wait:#485362;--bad:#ff7b72}}
"""
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 30  # inside a panel, around its plot
TICK_STEPS = (1, 2, 2.5, 5, 10)
LEAST_WIDTH = 0.7  # width of the narrowest bar, in pixels


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to 0..1, evenly or by their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        assert self.low < self.high and (self.low > 0 or not self.log)

    def place(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values inside the scale."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            span = math.log10(self.high / self.low)
            steps = (1, 1.5, 2, 3, 4, 5, 7) if span < 0.8 else (1, 2, 5) if span < 2.5 else (1,)
            found = [step * 10.0**decade for decade in decades for step in steps]
        else:
            rough = (self.high - self.low) / wanted
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(step * unit for step in TICK_STEPS if step * unit >= rough * 0.999)
            found = [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step * 1.0001) + 1)]
        return [value for value in found if self.low * 0.9999 <= value <= self.high * 1.0001]


@dataclass(frozen=True, slots=True)
class SvgPanel:
    """A plot inside a rectangle of the picture, in pixels."""

    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return (
            self.left + LEFT + self.x.place(x) * inner_width,
            self.top + TOP + (1 - self.y.place(y)) * inner_height,
        )

    def frame(self, title: str, x_label: Callable[[float], str], y_label: Callable[[float], str] | None) -> list[str]:
        """Background, title, grid and the ticks' labels; without `y_label` the vertical axis has no ticks."""
        marks = [
            f'<rect class="panel" x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}" rx="6"/>',
            text(self.left + 12, self.top + 19, title, "title"),
        ]
        bottom = self.at(self.x.low, self.y.low)[1]
        for value in self.x.ticks():
            x = self.at(value, self.y.low)[0]
            marks.append(line((x, self.top + TOP), (x, bottom), "grid"))
            marks.append(text(x, bottom + 17, x_label(value), "muted", "middle"))
        for value in self.y.ticks(4) if y_label else ():
            left, y = self.at(self.x.low, value)
            marks.append(line((left, y), (self.left + self.width - RIGHT, y), "grid"))
            marks.append(text(left - 7, y + 4, y_label(value) if y_label else "", "muted", "end"))
        return marks

    def dots(self, points: Sequence[tuple[float, float]], style: str) -> list[str]:
        return [
            f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
            for x, y in (self.at(*point) for point in points)
        ]

    def curve(self, points: Sequence[tuple[float, float]], style: str) -> list[str]:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        return [f'<polyline class="line {style}" points="{places}"/>'] if points else []

    def bar(self, begin: float, end: float, y: float, thickness: float, style: str, least: float = LEAST_WIDTH) -> str:
        x, middle = self.at(begin, y)
        width = max(least, self.at(end, y)[0] - x)
        return f'<rect class="{style}" x="{x:.1f}" y="{middle:.1f}" width="{width:.1f}" height="{thickness:.2f}"/>'

    def limit_at_y(self, value: float | None) -> list[str]:
        """A dashed line across the plot, where the value is inside."""
        if value is None or not self.y.low <= value <= self.y.high:
            return []
        return [line(self.at(self.x.low, value), self.at(self.x.high, value), "limit")]

    def limit_at_x(self, value: float | None) -> list[str]:
        if value is None or not self.x.low <= value <= self.x.high:
            return []
        return [line(self.at(value, self.y.low), self.at(value, self.y.high), "limit")]

    def legend(self, entries: Sequence[tuple[str, str]]) -> str:
        """Names behind squares of their colours, at the right of the title."""
        parts = "\u2003".join(f'<tspan class="{style}">■</tspan> {escape(name)}' for name, style in entries)
        x, y = self.left + self.width - RIGHT, self.top + 19
        return f'<text class="muted" x="{x:.1f}" y="{y:.1f}" text-anchor="end">{parts}</text>'


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(clean(words))}</text>'


def line(begin: tuple[float, float], end: tuple[float, float], style: str) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def clean(words: str) -> str:
    """XML allows no control characters, not even escaped."""
    return "".join(sign if sign.isprintable() else " " for sign in words)


def time_label(seconds: float) -> str:
    """A time as short as it can be read."""
    if seconds == 0:
        return "0"
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.4g} s"
