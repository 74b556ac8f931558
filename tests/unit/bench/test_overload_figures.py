"""The figures of an overload: what counts as served in time, as wasted and as fair."""

from dataclasses import replace

from bench.overload_figures import NOBODY, GoodputLimits, OverloadRun, Served, summary

LIMITS = GoodputLimits(ttft_seconds=2.0, itl_seconds=0.1)
GOOD = Served("short", 10, 11, 0.0, 200, first=1.0, last=1.5, ended=1.6, done=True)
LATE = Served("short", 10, 11, 0.0, 200, first=2.5, last=3.0, ended=3.1, done=True)
SLOW = Served("long", 100, 11, 0.0, 200, first=1.0, last=3.0, ended=3.1, done=True)
LONG = Served("long", 100, 11, 0.0, 200, first=1.0, last=1.5, ended=1.6, done=True)
BROKEN = Served("long", 100, 11, 0.0, 200, first=1.0, last=1.5, ended=1.6)
REFUSED = Served("short", 10, 11, 0.0, 429, ended=0.02)


def test_goodput_counts_whole_answers_that_keep_both_limits() -> None:
    run = OverloadRun([GOOD, LATE, SLOW, BROKEN, REFUSED], 2.0, 240.0)
    assert run.goodput(LIMITS) == 0.5
    assert run.refusals_ms == [20.0]


def test_prompts_of_answers_that_did_not_come_are_wasted() -> None:
    assert OverloadRun([GOOD, LONG, REFUSED], 1.0, 110.0).wasted == 0.0
    assert OverloadRun([LONG, BROKEN], 1.0, 200.0).wasted == 0.5


def test_the_ratio_compares_the_luckiest_kind_with_the_unluckiest() -> None:
    assert OverloadRun([GOOD, REFUSED, LONG, LONG], 1.0, 1.0).success_ratio(LIMITS) == 2.0
    assert OverloadRun([GOOD, SLOW], 1.0, 1.0).success_ratio(LIMITS) == NOBODY


def test_an_answer_that_was_whole_after_its_own_deadline_is_late() -> None:
    timely, late = replace(GOOD, waits=1.55), replace(GOOD, waits=1.4)
    assert not timely.late and late.late and not replace(BROKEN, waits=0.1).late and not GOOD.late
    report = summary(
        {
            "1": [OverloadRun([GOOD], 1.0, 10.0)],
            "3": [OverloadRun([late], 1.0, 10.0)],
            "10": [OverloadRun([timely], 1.0, 10.0)],
        },
        LIMITS,
    )
    assert report["late_answers"] == 1 and "late_answers is 1, wanted <= 0" in report["missed"]
    assert LIMITS.whole_seconds(10) == 3.0


def test_the_summary_compares_overloads_with_the_best_load_and_names_what_missed() -> None:
    full, half = OverloadRun([GOOD, LONG], 1.0, 110.0), OverloadRun([GOOD, LATE, LONG, SLOW], 2.0, 220.0)
    report = summary({"1": [full], "3": [full], "10": [half]}, LIMITS)
    assert report["goodput_share_of_peak"] == {"3": 1.0, "10": 0.5} and not report["passed"]
    assert report["missed"] == ["goodput_share_of_peak 10 is 0.5, wanted >= 0.9"]
