"""A worker counts as hung when a step takes many times as long as measured ones let expect; then its process ends."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from mesh.sessions.step_times import LEAST_LIMIT_SECONDS, REMEMBERED, TIMES, StepTimes
from mesh.sessions.watchdog import HUNG, Watchdog


@dataclass
class StepClock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def measured(clock: StepClock, *steps: tuple[int, float]) -> StepTimes:
    """A record of steps that are over, each given as (rows, seconds)."""
    times = StepTimes(clock)
    for rows, seconds in steps:
        times.begin(rows)
        clock.now += seconds
        times.end()
    return times


def test_quick_steps_give_the_least_limit_and_slow_ones_a_longer_one() -> None:
    assert measured(StepClock(), (4, 0.01)).limit_seconds == LEAST_LIMIT_SECONDS
    slow = measured(StepClock(), (4, 0.01), (4, 6.0), (4, 0.01), (4, 6.0))
    assert slow.limit_seconds == pytest.approx(TIMES * 6.0)


def test_one_step_in_which_the_machine_stood_still_lengthens_no_limit() -> None:
    assert measured(StepClock(), (4, 0.01), (4, 0.01), (4, 50.0), (4, 0.01)).limit_seconds == LEAST_LIMIT_SECONDS


def test_slow_steps_of_long_ago_count_no_more() -> None:
    long_ago = measured(StepClock(), (4, 0.01), (4, 6.0), (4, 6.0), *((4, 0.01) for _ in range(REMEMBERED)))
    assert long_ago.limit_seconds == LEAST_LIMIT_SECONDS


def test_a_step_of_many_rows_may_take_as_much_longer() -> None:
    times = measured(StepClock(), (1, 30.0), (1, 0.1))  # the first one teaches nothing
    times.begin(512)
    assert times.limit_seconds == pytest.approx(TIMES * 51.2)


def test_the_first_step_of_a_large_model_may_take_minutes() -> None:
    assert StepTimes(StepClock(), weights_bytes=20_000_000).limit_seconds == LEAST_LIMIT_SECONDS
    large = StepTimes(StepClock(), weights_bytes=14_000_000_000)
    large.begin(100)
    assert 1500 < large.limit_seconds < 2000
    assert StepTimes(StepClock(), first_seconds=300.0).limit_seconds == 300.0


def test_a_step_that_was_handed_over_early_begins_when_the_one_before_it_is_over() -> None:
    clock = StepClock()
    times = StepTimes(clock)
    times.begin(1)
    times.begin(1)
    clock.now += 30.0
    times.end()
    assert times.running_seconds == 0.0
    clock.now += 3.0
    assert times.running_seconds == pytest.approx(3.0)
    times.end()
    clock.now += 50.0
    assert times.running_seconds == 0.0, "no step runs"


def test_a_hung_step_and_a_hung_loop_are_named_and_slow_ones_are_not() -> None:
    clock = StepClock()
    times = measured(clock, (1, 0.01))
    dog = Watchdog(times, clock=time.monotonic, loop_seconds=60.0)
    began = time.monotonic()
    times.begin(1)
    clock.now += 500 * 0.01
    assert dog.problem(began) == "", "500 times the median"
    clock.now += LEAST_LIMIT_SECONDS
    assert dog.problem(began) == "a step has been computing for 25.0 s, its limit is 20.0 s"
    times.end()
    assert "the event loop has not turned for 61." in dog.problem(began + 61.5)


def test_time_in_which_the_whole_process_stood_still_does_not_count() -> None:
    clock = StepClock()
    times = measured(clock, (1, 0.01))
    times.begin(1)
    clock.now += 60.0
    times.excuse(58.0)
    assert Watchdog(times, clock=time.monotonic).problem(time.monotonic()) == ""


def test_the_thread_ends_a_process_that_hangs_once() -> None:
    clock, ended = StepClock(), list[str]()
    over = threading.Event()
    times = measured(clock, (1, 0.01))
    dog = Watchdog(times, clock=time.monotonic, end=lambda why: (ended.append(why), over.set())[0], look_seconds=0.02)
    dog.start()
    times.begin(1)
    assert not over.wait(0.2), "a step that runs is no hung step"
    clock.now += LEAST_LIMIT_SECONDS + 1
    assert over.wait(60)
    time.sleep(0.1)
    assert len(ended) == 1


def test_the_process_ends_with_its_own_status_and_says_why_and_where() -> None:
    script = (
        "import threading, time\n"
        "from mesh.sessions.step_times import StepTimes\n"
        "from mesh.sessions.watchdog import Watchdog\n"
        "now = [0.0]\n"
        "steps = StepTimes(lambda: now[0])\n"
        "def a_step_that_never_ends(): time.sleep(600)\n"
        "threading.Thread(target=a_step_that_never_ends, daemon=True).start()\n"
        "steps.begin(1)\n"
        "now[0] = 1000.0\n"
        "Watchdog(steps, clock=time.monotonic, look_seconds=0.01).start()\n"
        "time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == HUNG
    assert "a step has been computing for 1000.0 s, its limit is 20.0 s: this process ends" in done.stderr
    assert "a_step_that_never_ends" in done.stderr
