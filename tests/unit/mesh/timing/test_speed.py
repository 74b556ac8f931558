"""A worker's measured speed: its longest step, and a rate that follows recent steps."""

from mesh.timing.speed import Speed


def test_the_longest_step_counts() -> None:
    speed = Speed()
    for seconds in (0.02, 0.5, 0.1):
        speed.measure(8, seconds)
    assert 480 < speed.longest_ms <= 500


def test_a_freeze_is_forgotten_after_some_hundred_steps() -> None:
    speed = Speed()
    for seconds in (60.0, *[0.1] * 700):
        speed.measure(8, seconds)
    assert speed.longest_ms == 100


def test_short_steps_do_not_make_a_worker_forget_how_long_it_takes_for_long_prompts() -> None:
    speed = Speed()
    speed.measure(512, 8.7)
    for _ in range(1000):
        speed.measure(4, 0.02)
    assert speed.longest_ms > 7900
    for _ in range(700):
        speed.measure(512, 0.1)
    assert speed.longest_ms == 100, "steps of its size do"


def test_a_freeze_in_a_short_step_fades_with_short_steps() -> None:
    speed = Speed()
    speed.measure(512, 0.5)
    for seconds in (60.0, *[0.02] * 900):
        speed.measure(4, seconds)
    assert speed.longest_ms < 20 + 5


def test_the_first_step_sets_the_rate_and_later_ones_move_it() -> None:
    speed = Speed()
    assert speed.tokens_per_second == 0.0, "not measured yet"
    speed.measure(100, 1.0)
    assert speed.tokens_per_second == 100.0
    speed.measure(200, 1.0)
    assert speed.tokens_per_second == 120.0
    for _ in range(40):
        speed.measure(200, 1.0)
    assert speed.tokens_per_second == 200.0


def test_a_step_of_one_row_says_nothing_about_the_rate_of_prompts() -> None:
    speed = Speed()
    speed.measure(1, 0.01)
    speed.measure(8, 0.0)
    assert speed.tokens_per_second == 0.0


def test_small_changes_leave_the_reported_rate_alone() -> None:
    speed = Speed()
    speed.measure(1000, 1.0)
    speed.measure(1010, 1.0)
    assert speed.tokens_per_second == 1000.0


def test_small_steps_between_large_ones_hardly_change_the_rate_of_prompts() -> None:
    speed = Speed()
    speed.measure(512, 0.5)
    for _ in range(50):
        speed.measure(4, 0.1)  # 40 rows per second
    assert speed.tokens_per_second > 900.0
    assert 0.09 < speed.step_seconds < 0.11, "which follows every step"
