"""Draws one request's spans as bars under each other, children below their parent, on one axis of milliseconds.

The spans come from the gateway's GET /debug/requests/{request_id}."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.dashboards.charts import Frame
from tests.dashboards.scale import shown, ticks
from tests.dashboards.svg import SERIES, Picture, fitted

ROW, NAMES, INDENT = 17.0, 0.27, 12.0

SpanRow = Mapping[str, Any]


def in_order(spans: Sequence[SpanRow]) -> list[tuple[int, SpanRow]]:
    """Every span with its depth: each parent before its children, siblings by their start. A span whose parent is
    missing stands at the top level."""
    known = {span["span_id"] for span in spans}
    children: dict[str, list[SpanRow]] = {}
    for span in spans:
        parent = span.get("parent_id") or ""
        children.setdefault(parent if parent in known else "", []).append(span)
    found, left = list[tuple[int, SpanRow]](), [(0, span) for span in _by_start(children.get("", []))][::-1]
    while left:
        depth, span = left.pop()
        found.append((depth, span))
        left += [(depth + 1, child) for child in _by_start(children.get(span["span_id"], []))][::-1]
    return found


def waterfall(picture: Picture, frame: Frame, spans: Sequence[SpanRow]) -> None:
    rows = in_order(spans)
    row = min(ROW, (frame.h - 16) / max(len(rows), 1))
    names = frame.w * NAMES
    left, width = frame.x + names, frame.w - names - 60
    length = max((span["start_ms"] + span["duration_ms"] for span in spans), default=1.0) or 1.0
    services = {name: f"s{place % SERIES}" for place, name in enumerate(dict.fromkeys(s["service"] for _, s in rows))}
    for mark in ticks(length, 6):
        if mark <= length:
            x = left + width * mark / length
            picture.line([(x, frame.y), (x, frame.y + row * len(rows))], "grid thin")
            picture.text(x, frame.y + row * len(rows) + 12, shown(mark, "ms"), "soft mid", size=10)
    for place, (depth, span) in enumerate(rows):
        y, role = frame.y + row * place, services[span["service"]]
        x, w = left + width * span["start_ms"] / length, max(1.5, width * span["duration_ms"] / length)
        picture.text(
            frame.x + depth * INDENT, y + row * 0.7, fitted(span["name"], names - depth * INDENT), "text", size=10.5
        )
        picture.rect(x, y + row * 0.18, w, row * 0.64, f"{role} flat", round_by=2)
        for event in span.get("events", []):
            picture.dot(left + width * event["at_ms"] / length, y + row * 0.5, "text", 1.8)
        picture.text(x + w + 5, y + row * 0.7, shown(span["duration_ms"], "ms"), "soft", size=10)
    x = left
    for name, role in services.items():
        picture.rect(x, frame.y + frame.h - 6, 9, 4, f"{role} flat", round_by=2)
        picture.text(x + 13, frame.y + frame.h, name, "soft", size=10.5)
        x += len(name) * 6.2 + 30


def _by_start(spans: Sequence[SpanRow]) -> list[SpanRow]:
    return sorted(spans, key=lambda span: (span["start_ms"], -span["duration_ms"]))
