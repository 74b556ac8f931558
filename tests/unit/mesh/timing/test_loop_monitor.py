"""An event loop that stands still is noticed, while somebody wants to know."""

import asyncio
from typing import Any

import pytest

from mesh.timing.loop_monitor import BLOCKED_SECONDS, TICK_SECONDS, LoopMonitor
from tests.sim.loop import run_virtual, virtual


async def blocked(seconds: float, *, after: float = 0.1, users: int = 1) -> list[tuple[float, float]]:
    """The report of a monitor whose loop stands still for so long, some time after its start."""
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()
    for _ in range(users):
        monitor.begin()
    await asyncio.sleep(after)
    monitor.active()
    loop.call_soon(loop.stand_still, seconds)
    await asyncio.sleep(0.1)
    return monitor.end(0.0)


def test_an_interval_is_as_long_as_the_loop_stood_still() -> None:
    ((start, end),) = run_virtual(blocked(0.08))
    assert start == pytest.approx(0.1, abs=TICK_SECONDS) and end == pytest.approx(0.18)


def test_a_short_delay_is_none() -> None:
    assert run_virtual(blocked(BLOCKED_SECONDS * 0.9)) == []


@virtual
async def test_an_idle_monitor_has_no_timer() -> None:
    monitor = LoopMonitor()
    loop: Any = asyncio.get_running_loop()
    monitor.begin()
    monitor.end(0.0)
    await asyncio.sleep(0.1)
    assert not [handle for handle in loop._scheduled if not handle.cancelled()]
    loop.stand_still(0.5)
    monitor.begin()
    await asyncio.sleep(0.05)
    assert monitor.end(0.0) == [], "nobody watched when the loop stood still"


@virtual
async def test_a_loop_that_waits_has_no_timer_until_something_happens() -> None:
    loop, monitor = asyncio.get_running_loop(), LoopMonitor()
    monitor.begin()
    await asyncio.sleep(1.0)
    waiting: Any = loop
    assert not [handle for handle in waiting._scheduled if not handle.cancelled()]
    monitor.active()
    waiting.stand_still(0.08)
    await asyncio.sleep(0.1)
    assert len(monitor.end(0.0)) == 1


@virtual
async def test_a_request_that_ends_in_the_blocking_callback_still_sees_it() -> None:
    monitor = LoopMonitor()
    loop: Any = asyncio.get_running_loop()
    monitor.begin()
    await asyncio.sleep(0.1)
    monitor.active()
    loop.stand_still(0.08)
    ((start, end),) = monitor.end(0.0)
    assert end - start == pytest.approx(0.08, abs=TICK_SECONDS)
    assert monitor.blocked_seconds == pytest.approx(end - start)


@virtual
async def test_while_a_step_computes_no_timer_runs_and_a_late_reading_of_its_result_is_seen() -> None:
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()
    monitor.begin()
    await asyncio.sleep(0.05)
    monitor.step_begins()
    assert not [handle for handle in loop._scheduled if not handle.cancelled()]
    done = loop.time() + 0.02
    loop.stand_still(0.1)  # the step is done after 20 ms of these
    monitor.step_ends(done)
    ((start, end),) = monitor.end(0.0)
    assert start == pytest.approx(done) and end == pytest.approx(done + 0.08)


@virtual
async def test_a_step_that_is_read_in_time_or_has_no_time_blocks_nothing() -> None:
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()
    monitor.begin()
    for done in (0.5, 0.0):
        monitor.step_begins()
        await asyncio.sleep(0.5)
        monitor.step_ends(loop.time() if done else 0.0)
    assert monitor.end(0.0) == []


@virtual
async def test_only_intervals_since_the_request_began_are_its_own() -> None:
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()
    monitor.begin()
    loop.call_soon(loop.stand_still, 0.05)
    await asyncio.sleep(0.1)
    later = loop.time()
    monitor.begin()
    assert monitor.end(later) == [] and len(monitor.end(0.0)) == 1


@pytest.mark.parametrize("seconds", [TICK_SECONDS / 5, 5 * TICK_SECONDS])
@virtual
async def test_a_timer_from_before_a_step_says_nothing_of_the_step_and_is_not_set_anew(seconds: float) -> None:
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()

    def timers() -> list[asyncio.TimerHandle]:
        return [handle for handle in loop._scheduled if not handle.cancelled()]

    monitor.begin()
    for _ in range(3):
        (before,) = timers()
        monitor.step_begins()
        await asyncio.sleep(seconds)
        monitor.end(0.0)  # another request ends meanwhile
        monitor.begin()
        monitor.step_ends(loop.time())
        (after,) = timers()
        assert (after is before) == (seconds < TICK_SECONDS)
    assert monitor.end(0.0) == [], "the loop waited for the steps"
    monitor.begin()
    loop.stand_still(TICK_SECONDS + 2 * BLOCKED_SECONDS)
    await asyncio.sleep(0.1)
    assert len(monitor.end(0.0)) == 1, "negative control: after the steps it stands still"


@virtual
async def test_a_loop_that_stands_still_while_a_step_computes_is_judged_by_when_the_step_is_read() -> None:
    loop: Any = asyncio.get_running_loop()
    monitor = LoopMonitor()
    monitor.begin()
    monitor.step_begins()
    loop.stand_still(0.08)
    assert monitor.end(0.0) == [], "the step may not be done yet"
    monitor.begin()
    done = loop.time()
    loop.stand_still(0.05)
    monitor.step_ends(done)
    assert monitor.end(0.0) == [(done, loop.time())]
