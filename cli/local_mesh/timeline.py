"""A request's trace as a small picture for a terminal: one row per phase, bars on one time axis.

Pure functions from the JSON of `GET /debug/requests/{request_id}` to lines. Phases of one service that repeat (the
attempts of a resumed request) share a row; what holds other spans, or took no time, is left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh.telemetry import semconv

Json = dict[str, Any]
LABELS = {
    semconv.DISPATCH: "to worker",
    semconv.KV_RESERVE: "pages reserved",
    semconv.COMPUTE: "prefill",
    semconv.KV_SEND: "hand-off",
    semconv.KV_RECEIVE: "landing",
    semconv.GENERATE: "decode",
    semconv.DELIVER: "to gateway",
}
WHOLE, FIRST_TOKEN = "request", "first token"
SHORTEST_SHARE = 0.001  # rows that took less of the request are left out
LEAST_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Row:
    service: str
    label: str
    pieces: tuple[tuple[float, float], ...]  # seconds after the request's start
    mark: bool = False  # drawn as a point at its end

    @property
    def seconds(self) -> float:
        """How long at least one piece runs: those of a request's choices lie over each other."""
        found, until = 0.0, 0.0
        for start, stop in sorted(self.pieces):
            found += max(0.0, stop - max(start, until))
            until = max(until, stop)
        return found


def rows_of(request: Json) -> list[Row]:
    """Rows in the order in which their phases began, the whole request first."""
    spans: Sequence[Json] = request["spans"]
    if not spans:
        return []
    inner = {span["parent_id"] for span in spans if span["name"] != semconv.LOOP_BLOCKED}
    root = spans[0]
    total = root["duration_ms"] / 1000
    rows = [Row(root["service"], WHOLE, ((0.0, total),))]
    if request["ttft_seconds"] is not None:
        rows.append(Row(root["service"], FIRST_TOKEN, ((0.0, request["ttft_seconds"]),), mark=True))
    grouped: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in sorted(spans, key=lambda span: (span["start_ms"], span["duration_ms"])):
        if span["span_id"] not in inner and span is not root:
            start = span["start_ms"] / 1000
            grouped.setdefault((span["service"], span["name"]), []).append((start, start + span["duration_ms"] / 1000))
    found = [Row(service, LABELS.get(name, name), tuple(pieces)) for (service, name), pieces in grouped.items()]
    return rows + [row for row in found if row.seconds >= total * SHORTEST_SHARE]


def draw(request: Json, columns: int = 100) -> list[str]:
    """The picture as lines of at most `columns` characters."""
    rows = rows_of(request)
    if not rows:
        return ["this request was not traced"]
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
