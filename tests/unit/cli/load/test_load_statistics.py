"""Percentiles against known values, rates, limits and goodput."""

import pytest

from cli.load.record import MeasuredRequest
from cli.load.report import usage_notes
from cli.load.statistics import LatencyLimits, Percentiles, percentile, percentiles, summarize


def record(
    number: int = 0, *, scheduled: float = 0.0, first: float = 1.0, gap: float = 0.1, tokens: int = 3, error: str = ""
) -> MeasuredRequest:
    chunks = [first + gap * position for position in range(tokens)]
    return MeasuredRequest(
        number,
        scheduled,
        scheduled,
        input_tokens=10,
        output_tokens=tokens,
        chunks=chunks,
        finish=chunks[-1],
        ended=chunks[-1],
        prompt_tokens=10,
        completion_tokens=tokens,
        error=error,
    )


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 99, 5.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([float(n) for n in range(1, 101)], 90, 90.1),
        ([float(n) for n in range(1, 101)], 99, 99.01),
        ([0.0, 10.0], 0, 0.0),
        ([0.0, 10.0], 100, 10.0),
    ],
)
def test_percentiles_are_those_of_the_usual_definition(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_no_values_have_no_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles([1.0, 3.0]) == Percentiles(mean=2.0, p50=2.0, p90=pytest.approx(2.8), p99=pytest.approx(2.98))


def test_rates_count_from_the_first_scheduled_time_to_the_last_end() -> None:
    summary = summarize([record(0, scheduled=2.0, first=3.0), record(1, scheduled=4.0, first=11.8)], LatencyLimits())
    assert summary.seconds == pytest.approx(10.0)
    assert summary.requests_per_second == pytest.approx(0.2)
    assert summary.input_tokens_per_second == pytest.approx(2.0)
    assert summary.output_tokens_per_second == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (LatencyLimits(), 2),
        (LatencyLimits(ttft=1.5), 1),
        (LatencyLimits(ttft=1.5, itl=0.05), 0),
        (LatencyLimits(tpot=0.3), 1),
        (LatencyLimits(itl=0.6), 2),
    ],
)
def test_a_request_is_good_when_it_meets_every_limit(limits: LatencyLimits, good: int) -> None:
    """The third one failed: it is never good, and lowers the share."""
    records = [record(0, first=1.0, gap=0.1), record(1, first=2.0, gap=0.5), record(2, error="timeout")]
    summary = summarize(records, limits)
    assert summary.good == good and summary.good_share == pytest.approx(good / 3)
    assert summary.errors == {"timeout": 1} and summary.finished == 2


def test_the_limit_of_gaps_is_for_the_99th_percentile_of_the_request_itself() -> None:
    gaps = [0.01] * 199 + [9.0]
    assert LatencyLimits(itl=0.02).met(0.1, 0.01, gaps)
    assert not LatencyLimits(itl=0.02).met(0.1, 0.01, [*gaps, 9.0, 9.0])


def test_without_usage_tokens_are_not_guessed() -> None:
    silent = record()
    silent.prompt_tokens = silent.completion_tokens = None
    summary = summarize([silent], LatencyLimits())
    assert summary.output_tokens_per_second is None and summary.tpot is None and summary.itl is not None
    assert "1 of 1 answers came without usage" in usage_notes([silent])[0]


def test_lengths_that_differ_from_the_plan_are_told() -> None:
    off = record()
    off.prompt_tokens, off.output_tokens = 12, 9
    notes = usage_notes([off, record()])
    assert notes == [
        "1 of 2 prompts differ from their planned length, by 2 tokens.",
        "1 of 2 answers are shorter than planned, by 6 tokens.",
    ]


def test_hits_of_the_prefix_cache_are_told_with_advice_unless_they_are_planned() -> None:
    hit = record()
    hit.cached_tokens = 8
    (note,) = usage_notes([hit, record()])
    assert note.startswith("8 of 20 prompt tokens") and "another --seed" in note
    assert "--seed" not in usage_notes([hit], shared_prefixes=True)[0]


def test_a_run_without_any_answer_has_a_summary() -> None:
    summary = summarize([record(error="HTTP 500")], LatencyLimits(ttft=1.0))
    assert summary.ttft is None and summary.good_share == 0.0 and summary.requests_per_second == 0.0
    assert summarize([], LatencyLimits()).seconds == 0.0
