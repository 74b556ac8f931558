"""The figures of bench.peers as bars: one row of charts per precision, one chart per point."""

from typing import Any
from xml.sax.saxutils import escape

WIDTH, ROW, CHART, BAR = 960, 150, 180, 22
COLORS = {"Baton": "#8da2fb", "Baton on vLLM's file": "#c3cdfd"}
OTHER = "#cbd2d9"


def draw(report: dict[str, Any]) -> str:
    precisions = list(dict.fromkeys(point["precision"] for point in report["points"]))
    height = 60 + ROW * len(precisions)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">Tokens per second, {report["threads"]} threads of '
        f"{escape(report['machine'])}</text>",
    ]
    for row, precision in enumerate(precisions):
        parts.append(f'<text x="16" y="{60 + row * ROW}" font-size="14" font-weight="600">{escape(precision)}</text>')
        points = [point for point in report["points"] if point["precision"] == precision]
        for column, name in enumerate(dict.fromkeys(point["point"] for point in points)):
            here = [point for point in points if point["point"] == name]
            here.sort(key=lambda point: not point["engine"].startswith("Baton"))
            parts += _chart(16 + column * (CHART + 8), 66 + row * ROW, name, here)
    return "\n".join([*parts, "</svg>", ""])


def _chart(x: int, y: int, name: str, points: list[dict[str, Any]]) -> list[str]:
    most = max(point["tokens_per_second"] for point in points)
    parts = [f'<text x="{x}" y="{y + 14}" font-size="12" fill="#52606d">{escape(name.replace("_", " "))}</text>']
    for index, point in enumerate(points):
        top, speed = y + 20 + index * (BAR + 3), point["tokens_per_second"]
        color = COLORS.get(point["engine"], OTHER)
        parts.append(f'<rect x="{x}" y="{top}" width="{speed / most * CHART:.1f}" height="{BAR}" fill="{color}"/>')
        label = f"{escape(point['engine'])} {speed:.0f}"
        parts.append(f'<text x="{x + 5}" y="{top + 15}" font-size="11" fill="#1f2933">{label}</text>')
    return parts
