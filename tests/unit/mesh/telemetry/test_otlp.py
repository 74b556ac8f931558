"""The offset between the clock of an event loop and the wall clock of traces."""

from collections.abc import Callable, Iterator

import pytest

from mesh.telemetry.otlp import offset_seconds

WALL_AHEAD = 1_700_000_000.0


def clocks(delays: Iterator[float]) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two clocks over one time, which passes by the next delay with every reading."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += next(delays)
        return now

    return clock, lambda: clock() + WALL_AHEAD


def test_an_interruption_between_two_readings_shifts_no_span() -> None:
    delays = [0.001, 0.001, 0.001] * 8
    delays[1] = 0.5
    delays[10] = 0.25
    clock, wall = clocks(iter(delays))
    assert offset_seconds(clock, wall) == pytest.approx(WALL_AHEAD, abs=1e-6)


def test_the_wall_clock_is_taken_to_be_read_halfway() -> None:
    clock, wall = clocks(iter([0.0, 0.004, 0.004] * 8))
    assert offset_seconds(clock, wall) == pytest.approx(WALL_AHEAD, abs=1e-6)
