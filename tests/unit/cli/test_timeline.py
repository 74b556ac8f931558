"""The picture shows each phase where it was, whatever the services recorded."""

import pytest

from cli.timeline import draw, rows_of
from mesh.telemetry import SpanRecord


def span(service: str, name: str, start: float, end: float) -> SpanRecord:
    return SpanRecord(service, name, 1, 2, 3, start, end)


SPANS = [
    span("prefill-0", "prefill.compute", 10.1, 10.2),
    span("prefill-0", "prefill.compute", 10.3, 10.4),
    span("gateway", "request", 10.0, 11.0),
    span("gateway", "first_token", 10.0, 10.5),
    span("decode-1", "decode", 10.5, 11.0),
]


def test_the_request_comes_first_and_phases_follow_in_the_order_they_began() -> None:
    assert [(row.service, row.label) for row in rows_of(SPANS)] == [
        ("gateway", "request"),
        ("gateway", "first token"),
        ("prefill-0", "prefill"),
        ("decode-1", "decode"),
    ]


def test_phases_that_repeat_share_a_row_and_add_up() -> None:
    row = rows_of(SPANS)[2]
    assert len(row.pieces) == 2 and row.seconds == pytest.approx(0.2)


def test_bars_lie_where_the_phase_was() -> None:
    lines = draw(SPANS, columns=100)
    bars = {line.split()[0]: (line.find("█"), line.rfind("█")) for line in lines if "█" in line}
    left, right = bars["gateway"]
    width = right - left + 1
    assert bars["decode-1"][0] == pytest.approx(left + width / 2, abs=1)
    assert bars["decode-1"][1] == right
    gap = next(line for line in lines if "prefill" in line)[bars["prefill-0"][0] : bars["prefill-0"][1]]
    assert " " in gap


def test_the_first_token_is_a_point_in_time() -> None:
    (line,) = (line for line in draw(SPANS) if "◆" in line)
    assert "first token" in line and "at 500 ms" in line


def test_a_phase_too_short_for_a_column_is_still_seen() -> None:
    lines = draw([span("gateway", "request", 0.0, 10.0), span("gateway", "queue", 0.0, 0.0001)])
    assert "▏" in next(line for line in lines if "queue" in line)
    assert "0.1 ms" in next(line for line in lines if "queue" in line)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_lines_fit_the_terminal(columns: int) -> None:
    assert max(map(len, draw(SPANS, columns))) <= columns


def test_without_spans_it_says_so() -> None:
    assert draw([]) == ["no spans have arrived"]
