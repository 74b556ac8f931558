"""Checks of one trace: are all parents there, do the leaves tile the request, and whose is each moment.

A moment belongs to one leaf: work (queue, compute, generate) before everything else, then the way to a worker, then the
transfer, then what only waits for these. `own_seconds` sums the moments by span name: a delay shows in one name only.
A `loop.blocked` has the claim of the span that it interrupts, and comes before it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from mesh.telemetry import semconv
from mesh.telemetry.spans import SpanRecord

# The better claim first.
CLAIMS = (
    *(semconv.COMPUTE, semconv.GENERATE, semconv.QUEUE, semconv.SILENCE),
    *(semconv.DISPATCH, semconv.KV_SEND, semconv.KV_RESERVE, semconv.DELIVER),
    *(semconv.PREPROCESS, semconv.ROUTE, semconv.ADMISSION, semconv.POSTPROCESS, semconv.KV_RECEIVE),
)


def root_of(spans: Iterable[SpanRecord]) -> SpanRecord:
    """The outermost span of ours: its parent is not among the spans."""
    spans = list(spans)
    ids = {span.span_id for span in spans}
    roots = [span for span in spans if span.parent_id not in ids]
    outer = [span for span in roots if span.name not in CLAIMS]
    assert outer, "the trace has no root"
    return outer[0]


def orphans(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Spans, other than the root, whose parent is not there."""
    ids, root = {span.span_id for span in spans}, root_of(spans)
    return [span for span in spans if span is not root and span.parent_id not in ids]


def leaves(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Spans without children; a blocked loop inside a span does not make that span a parent."""
    parents = {span.parent_id for span in spans if span.name != semconv.LOOP_BLOCKED}
    return [span for span in spans if span.span_id not in parents]


def tiled_share(spans: Sequence[SpanRecord]) -> float:
    """Share of the root's time that leaves cover."""
    root = root_of(spans)
    total = root.end_seconds - root.start_seconds
    return sum(high - low for low, high, covering in _moments(spans) if covering) / total if total > 0 else 1.0


def own_seconds(spans: Sequence[SpanRecord]) -> dict[str, float]:
    """Seconds of the root's time by the name of the leaf that each moment belongs to; "" where no leaf is."""
    by_id = {span.span_id: span for span in spans}
    found: dict[str, float] = {}
    for low, high, covering in _moments(spans):
        owner = min(covering, key=lambda span: _claim(span, by_id)).name if covering else ""
        found[owner] = found.get(owner, 0.0) + high - low
    return found


def own_shares(spans: Sequence[SpanRecord]) -> dict[str, float]:
    """The same as shares of the root's time."""
    root = root_of(spans)
    total = root.end_seconds - root.start_seconds or 1e-9
    return {name: seconds / total for name, seconds in own_seconds(spans).items()}


def by_trace(spans: Iterable[SpanRecord]) -> dict[int, list[SpanRecord]]:
    """The traces of requests: sampled steps have traces of their own, which are left out."""
    found: dict[int, list[SpanRecord]] = {}
    for span in spans:
        if span.name != semconv.ENGINE_STEP:
            found.setdefault(span.trace_id, []).append(span)
    return found


def spans_of(answer: dict[str, Any]) -> list[SpanRecord]:
    """The spans of `GET /debug/requests/{request_id}`; times count from the root's start."""
    return [
        SpanRecord(
            service=span["service"],
            name=span["name"],
            trace_id=int(answer["trace_id"], 16),
            span_id=int(span["span_id"], 16),
            parent_id=int(span["parent_id"] or "0", 16),
            start_seconds=span["start_ms"] / 1000,
            end_seconds=(span["start_ms"] + span["duration_ms"]) / 1000,
            attributes=span["attributes"],
        )
        for span in answer["spans"]
    ]


def picture(spans: Sequence[SpanRecord]) -> str:
    """The tree as text, for failing tests."""
    root, by_id = root_of(spans), {span.span_id: span for span in spans}

    def depth(span: SpanRecord) -> int:
        return 1 + depth(by_id[span.parent_id]) if span.parent_id in by_id else 0

    lines = []
    for span in spans:
        start, end = span.start_seconds - root.start_seconds, span.end_seconds - root.start_seconds
        lines.append(f"{start * 1000:9.2f} {end * 1000:9.2f} ms {'  ' * depth(span)}{span.name} ({span.service})")
    return "\n".join(lines)


def _moments(spans: Sequence[SpanRecord]) -> list[tuple[float, float, list[SpanRecord]]]:
    """The root's time, cut at every edge of a leaf, with the leaves that cover each piece."""
    root, ends = root_of(spans), leaves(spans)
    start, end = root.start_seconds, root.end_seconds
    edges = {start, end, *(edge for span in ends for edge in (span.start_seconds, span.end_seconds))}
    cuts = sorted(edge for edge in edges if start <= edge <= end)
    return [
        (low, high, [span for span in ends if span.start_seconds <= low and high <= span.end_seconds])
        for low, high in pairwise(cuts)
    ]


def _claim(span: SpanRecord, by_id: dict[int, SpanRecord]) -> tuple[int, int]:
    blocked = span.name == semconv.LOOP_BLOCKED
    name = by_id[span.parent_id].name if blocked and span.parent_id in by_id else span.name
    return CLAIMS.index(name) if name in CLAIMS else len(CLAIMS), 0 if blocked else 1
