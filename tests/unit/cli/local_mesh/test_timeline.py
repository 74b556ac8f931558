"""The picture shows each phase where it was, whatever the gateway recorded."""

from typing import Any

import pytest

from cli.local_mesh.timeline import draw, rows_of

Json = dict[str, Any]


def span(service: str, name: str, start_ms: float, end_ms: float, span_id: str = "", parent_id: str = "root") -> Json:
    number = span_id or f"{service}{name}{start_ms}"
    times = {"start_ms": start_ms, "duration_ms": end_ms - start_ms}
    return {"service": service, "name": name, "span_id": number, "parent_id": parent_id, **times}


def request(*spans: Json, ttft_seconds: float | None = 0.5) -> Json:
    return {"spans": list(spans), "ttft_seconds": ttft_seconds}


ROOT = span("gateway", "POST /v1/chat/completions", 0.0, 1000.0, "root", "")
REQUEST = request(
    ROOT,
    span("gateway", "prefill", 0.0, 500.0, "p"),
    span("prefill-0", "compute", 100.0, 200.0, parent_id="p"),
    span("prefill-0", "compute", 300.0, 400.0, parent_id="p"),
    span("prefill-0", "loop.blocked", 300.0, 320.0, parent_id="prefill-0compute300.0"),
    span("decode-1", "generate", 500.0, 1000.0),
    span("gateway", "postprocess", 1000.0, 1000.0),
)


def test_the_request_comes_first_and_phases_follow_in_the_order_they_began() -> None:
    assert [(row.service, row.label) for row in rows_of(REQUEST)] == [
        ("gateway", "request"),
        ("gateway", "first token"),
        ("prefill-0", "prefill"),
        ("prefill-0", "loop.blocked"),
        ("decode-1", "decode"),
    ]


def test_phases_that_repeat_share_a_row_and_add_up() -> None:
    row = rows_of(REQUEST)[2]
    assert len(row.pieces) == 2 and row.seconds == pytest.approx(0.2)


def test_the_phases_of_choices_that_run_together_count_once() -> None:
    together = [span("decode-1", "generate", start, start + 400.0) for start in (500.0, 500.0, 600.0)]
    row = rows_of(request(ROOT, *together))[2]
    assert (row.label, len(row.pieces)) == ("decode", 3) and row.seconds == pytest.approx(0.5)


def test_bars_lie_where_the_phase_was() -> None:
    lines = draw(REQUEST, columns=100)
    bars = {line.split()[0]: (line.find("█"), line.rfind("█")) for line in lines if "█" in line and "loop" not in line}
    left, right = bars["gateway"]
    width = right - left + 1
    assert bars["decode-1"][0] == pytest.approx(left + width / 2, abs=1)
    assert bars["decode-1"][1] == right
    gap = next(line for line in lines if " prefill " in line)[bars["prefill-0"][0] : bars["prefill-0"][1]]
    assert " " in gap


def test_the_first_token_is_a_point_in_time() -> None:
    (line,) = (line for line in draw(REQUEST) if "◆" in line)
    assert "first token" in line and "at 500 ms" in line


def test_a_phase_too_short_for_a_column_is_still_seen() -> None:
    lines = draw(request(ROOT, span("gateway", "queue", 0.0, 2.0)))
    assert "▏" in next(line for line in lines if "queue" in line)
    assert "2.0 ms" in next(line for line in lines if "queue" in line)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_lines_fit_the_terminal(columns: int) -> None:
    assert max(map(len, draw(REQUEST, columns))) <= columns


def test_an_unrecorded_request_is_said_to_be_one() -> None:
    assert draw(request(ttft_seconds=None)) == ["this request was not traced"]
