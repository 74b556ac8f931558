"""Draws one request's spans as bars under each other, children below their parent, on one axis of milliseconds.

The spans come from the gateway's GET /debug/requests/{request_id}."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.dashboards.charts import PlotArea
from tests.dashboards.scale import shown, ticks
from tests.dashboards.svg import SERIES, Picture, fitted

ROW, NAMES, INDENT, MANY = 17.0, 0.22, 12.0, 3

SpanRow = Mapping[str, Any]


def in_order(spans: Sequence[SpanRow]) -> list[tuple[int, list[SpanRow]]]:
    """The rows with their depth: each parent before its children, siblings by their start. Leaves of one name below one
    parent share a row if they are MANY. A span whose parent is missing stands at the top level."""
    known = {span["span_id"] for span in spans}
    children: dict[str, list[SpanRow]] = {}
    for span in spans:
        parent = span.get("parent_id") or ""
        children.setdefault(parent if parent in known else "", []).append(span)
    found = list[tuple[int, list[SpanRow]]]()
    left = [(0, row) for row in _rows(children.get("", []), children)][::-1]
    while left:
        depth, row = left.pop()
        found.append((depth, row))
        below = children.get(row[0]["span_id"], [])
        left += [(depth + 1, one) for one in _rows(below, children)][::-1]
    return found


def _rows(siblings: Sequence[SpanRow], children: Mapping[str, Any]) -> list[list[SpanRow]]:
    rows, shared = list[list[SpanRow]](), dict[str, list[SpanRow]]()
    often = Counter(span["name"] for span in siblings if span["span_id"] not in children)
    for span in sorted(siblings, key=lambda span: (span["start_ms"], -span["duration_ms"])):
        row = shared.setdefault(span["name"], []) if often[span["name"]] >= MANY else []
        if not row:
            rows.append(row)
        row.append(span)
    return rows


def waterfall(picture: Picture, frame: PlotArea, spans: Sequence[SpanRow]) -> None:
    rows = in_order(spans)
    row = min(ROW, (frame.h - 34) / max(len(rows), 1))
    names = frame.w * NAMES
    left, width = frame.x + names, frame.w - names - 60
    length = max((span["start_ms"] + span["duration_ms"] for span in spans), default=1.0) or 1.0
    services = {
        name: f"s{place % SERIES}" for place, name in enumerate(dict.fromkeys(r[0]["service"] for _, r in rows))
    }
    for mark in ticks(length, 6):
        if mark <= length:
            x = left + width * mark / length
            picture.line([(x, frame.y), (x, frame.y + row * len(rows))], "grid thin")
            picture.text(x, frame.y + row * len(rows) + 12, shown(mark, "ms"), "soft mid", size=10)
    for place, (depth, spans_of_row) in enumerate(rows):
        y, first = frame.y + row * place, spans_of_row[0]
        role = "bad" if first["name"] == "loop.blocked" else services[first["service"]]
        name = first["name"] if len(spans_of_row) == 1 else f"{first['name']} ×{len(spans_of_row)}"
        space = names - depth * INDENT - 6
        picture.text(frame.x + depth * INDENT, y + row * 0.7, fitted(name, space, 10.5), "text", size=10.5)
        x = w = 0.0
        for span in spans_of_row:
            x, w = left + width * span["start_ms"] / length, max(1.5, width * span["duration_ms"] / length)
            picture.rect(x, y + row * 0.18, w, row * 0.64, f"{role} flat", round_by=2)
            for event in span.get("events", []):
                picture.dot(left + width * event["at_ms"] / length, y + row * 0.5, "text", 1.8)
        total = sum(span["duration_ms"] for span in spans_of_row)
        picture.text(x + w + 5, y + row * 0.7, shown(total, "ms"), "soft", size=10)
    x = left
    for name, role in services.items():
        picture.rect(x, frame.y + frame.h - 6, 9, 4, f"{role} flat", round_by=2)
        picture.text(x + 13, frame.y + frame.h, name, "soft", size=10.5)
        x += len(name) * 6.2 + 30
