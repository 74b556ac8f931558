"""The picture is well-formed, stays inside its frame, loads nothing and has a light and a dark form."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cli.load.picture import MOST_BARS, cumulative, draw_run, thinned
from cli.load.record import MeasuredRequest
from cli.load.statistics import LatencyLimits
from cli.load.svg_panel import Scale, time_label

SVG = "{http://www.w3.org/2000/svg}"


def record(number: int, *, error: str = "", ended: bool = True) -> MeasuredRequest:
    at = number * 0.1
    chunks = [] if error else [at + 0.2, at + 0.25, at + 0.27]
    return MeasuredRequest(
        number, at, at, 10, 3, chunks=chunks, ended=at + 0.3 if ended else None, completion_tokens=3, error=error
    )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(0)],
        [record(0, error="timeout"), record(1, error="HTTP 500")],
        [record(0), record(1, ended=False), record(2, error="timeout")],
        [record(number) for number in range(MOST_BARS * 3)],
    ],
    ids=["none", "one", "failures", "mixed", "many"],
)
def test_every_run_has_a_picture(records: list[MeasuredRequest]) -> None:
    drawn = draw_run(records, LatencyLimits(0.3, 0.05, 0.04), title="a <b> & \x1b[31m", subtitle='"quoted"')
    root = ET.fromstring(drawn)
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    for mark in root.iter(f"{SVG}rect"):
        left, top = float(mark.get("x", 0)), float(mark.get("y", 0))
        assert 0 <= left and 0 <= top
        assert left + float(mark.attrib["width"]) <= width and top + float(mark.attrib["height"]) <= height
    for mark in root.iter(f"{SVG}circle"):
        assert 0 <= float(mark.attrib["cx"]) <= width and 0 <= float(mark.attrib["cy"]) <= height
    for curve in root.iter(f"{SVG}polyline"):
        for point in curve.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    assert "nan" not in drawn and "http" not in re.sub(r'xmlns="[^"]*"', "", drawn)


def test_colours_are_defined_for_light_and_dark(tmp_path: Path) -> None:
    drawn = draw_run([record(0)], LatencyLimits(), title="t", subtitle="s")
    light, dark = drawn.split("@media(prefers-color-scheme:dark)")
    used = set(re.findall(r"var\((--\w+)\)", drawn))
    for part in (light, dark.partition("}}")[0]):
        assert used <= set(re.findall(r"(--\w+):#", part))
    assert not re.search(r'(fill|stroke)="', drawn)  # every colour follows the scheme


def test_a_failed_request_has_the_colour_of_failures() -> None:
    good, bad = (draw_run([each], LatencyLimits(), title="", subtitle="") for each in (record(0), record(0, error="x")))
    assert bad.count('class="bad"') == good.count('class="bad"') + 1


def test_a_distribution_rises_to_one_and_keeps_its_ends() -> None:
    points = cumulative([0.3, 0.1, 0.2])
    assert points == [(0.1, pytest.approx(1 / 3)), (0.2, pytest.approx(2 / 3)), (0.3, 1.0)]
    many = cumulative([number / 1000 for number in range(1, 1001)])
    assert many[0][0] == 0.001 and many[-1] == (1.0, 1.0) and len(many) == 200
    assert thinned([1, 2, 3], 5) == [1, 2, 3] and thinned(list(range(100)), 3) == [0, 50, 99]


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 10), [0, 2, 4, 6, 8, 10]),
        (Scale(0, 0.0123), [0, 0.0025, 0.005, 0.0075, 0.01]),
        (Scale(0.009, 0.11, log=True), [0.01, 0.02, 0.05, 0.1]),
        (Scale(0.012, 0.04, log=True), [0.015, 0.02, 0.03, 0.04]),
        (Scale(0.0009, 1.1, log=True), [0.001, 0.01, 0.1, 1.0]),
    ],
)
def test_ticks_are_round_and_inside(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks() == pytest.approx(ticks)
    assert [scale.place(scale.low), scale.place(scale.high)] == [0.0, 1.0]
    assert scale.place(scale.high * 9) == 1.0


def test_times_are_written_short() -> None:
    written = [time_label(value) for value in (0, 2e-5, 0.0025, 0.25, 1.5, 90)]
    assert written == ["0", "20 µs", "2.5 ms", "250 ms", "1.5 s", "90 s"]
