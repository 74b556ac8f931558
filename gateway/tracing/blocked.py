"""Puts the intervals in which an event loop stood still into the spans that they interrupt.

Each part of an interval becomes one child span, of the span that has the better claim to that time: work (a queue,
computing, generating) before everything else, then the innermost span. So the time counts once, as `loop.blocked`."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from mesh.telemetry.semconv import LOOP_BLOCKED, WORK
from mesh.telemetry.spans import SpanRecord


def spans(
    mine: Sequence[SpanRecord],
    service: str,
    intervals: Iterable[tuple[float, float]],
    new_id: Callable[[str], int],
) -> list[SpanRecord]:
    """The `loop.blocked` spans of one service; `mine` are the spans that its loop can interrupt."""
    intervals = list(intervals)
    if not intervals:
        return []
    depth = _depths(mine)
    found = list[SpanRecord]()
    for start, end in intervals:
        edges = {start, end, *(edge for span in mine for edge in (span.start_seconds, span.end_seconds))}
        cuts = sorted(edge for edge in edges if start <= edge <= end)
        pieces = list[tuple[SpanRecord, float, float]]()
        for low, high in pairwise(cuts):
            covering = [span for span in mine if span.start_seconds <= low and high <= span.end_seconds]
            if not covering:
                continue
            owner = max(covering, key=lambda span: (span.name in WORK, depth[span.span_id], span.start_seconds))
            if pieces and pieces[-1][0] is owner and pieces[-1][2] == low:
                pieces[-1] = (owner, pieces[-1][1], high)
            else:
                pieces.append((owner, low, high))
        found += [
            SpanRecord(service, LOOP_BLOCKED, owner.trace_id, new_id(LOOP_BLOCKED), owner.span_id, low, high)
            for owner, low, high in pieces
        ]
    return found


def _depths(spans: Sequence[SpanRecord]) -> dict[int, int]:
    """How many of the spans lie above each."""
    parents = {span.span_id: span.parent_id for span in spans}
    depths = dict[int, int]()
    for span in spans:
        depth, above = 0, span.parent_id
        while above in parents:
            depth, above = depth + 1, parents[above]
        depths[span.span_id] = depth
    return depths
