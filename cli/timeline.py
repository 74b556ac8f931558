"""A request's trace as a small picture for a terminal: one row per phase, bars on one time axis.

Pure functions from spans to lines. Phases of one service that repeat (the chunks of a prompt) share a row."""

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.telemetry import SpanRecord

ROOT = "request"
LABELS = {
    "first_token": "first token",
    "prefill.queue": "queue",
    "prefill.compute": "prefill",
    "kv.push": "hand-off",
    "kv.land": "landing",
}
MARKS = frozenset({"first_token"})  # drawn as a point at their end
LEAST_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Row:
    service: str
    label: str
    pieces: tuple[tuple[float, float], ...]  # seconds after the request's start
    mark: bool

    @property
    def seconds(self) -> float:
        return sum(stop - start for start, stop in self.pieces)


def rows_of(spans: Sequence[SpanRecord]) -> list[Row]:
    """Rows in the order in which their phases began, the whole request first."""
    start = min(span.start_seconds for span in spans)
    grouped: dict[tuple[str, str], list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda span: (span.name != ROOT, span.start_seconds, span.end_seconds)):
        grouped.setdefault((span.service, span.name), []).append(span)
    return [
        Row(
            service=service,
            label=LABELS.get(name, name),
            pieces=tuple((span.start_seconds - start, span.end_seconds - start) for span in group),
            mark=name in MARKS,
        )
        for (service, name), group in grouped.items()
    ]


def draw(spans: Sequence[SpanRecord], columns: int = 100) -> list[str]:
    """The picture as lines of at most `columns` characters."""
    if not spans:
        return ["no spans have arrived"]
    rows = rows_of(spans)
    total = max(stop for row in rows for _, stop in row.pieces) or 1e-9
    names = max(len(row.service) for row in rows)
    labels = max(len(row.label) for row in rows)
    width = max(LEAST_COLUMNS, columns - names - labels - 17)
    lines = [_line(row, total, names, labels, width) for row in rows]
    axis = f"0{milliseconds(total):>{width - 1}}"
    return [*lines, f"{'':{names + labels + 4}}{axis}"]


def milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def _line(row: Row, total: float, names: int, labels: int, width: int) -> str:
    cells = [" "] * width
    for start, stop in row.pieces:
        if row.mark:
            cells[min(width - 1, int(stop / total * width))] = "◆"
            continue
        first = min(width - 1, int(start / total * width))
        last = max(first, min(width - 1, round(stop / total * width) - 1))
        cells[first : last + 1] = ("█" if stop - start >= total / width / 2 else "▏") * (last - first + 1)
    took = f"at {milliseconds(row.pieces[-1][1])}" if row.mark else milliseconds(row.seconds)
    return f"{row.service:<{names}}  {row.label:<{labels}}  {''.join(cells)} {took:>11}"
