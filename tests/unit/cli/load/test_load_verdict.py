"""The simulation against times computed by hand, and the verdict on a split with its reason."""

from dataclasses import replace

import pytest

from cli.load.estimate import ServiceSpeeds, simulate_colocated, simulate_split
from cli.load.plan import LoadRequest
from cli.load.probe import SHORT_TOKENS, speeds_of
from cli.load.statistics import LatencyLimits
from cli.load.verdict import Assumptions, Forecast, SplitReason, Verdict, decide, judge_split

SPEEDS = ServiceSpeeds(prefill_tokens_per_second=1000, step_seconds=0.01)
PAIR = [LoadRequest(100, 3, 0.0), LoadRequest(100, 3, 0.0)]


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    done = simulate_colocated([LoadRequest(100, 3, 2.0)], SPEEDS, workers=1, chunk_tokens=512)
    (request,) = done.requests
    assert request.ttft == pytest.approx(0.1) and request.gaps == pytest.approx([0.01, 0.01])
    assert done.seconds == pytest.approx(0.12)
    assert (done.prefill_seconds, done.decode_seconds) == (pytest.approx(0.1), pytest.approx(0.02))


def test_a_prompt_beside_an_answer_stretches_its_gap() -> None:
    """Step 1 computes the first prompt; step 2 the second prompt and one token of the first answer: 0.1 + 0.01 s."""
    first, second = simulate_colocated(PAIR, SPEEDS, workers=1, chunk_tokens=100).requests
    assert first.ttft == pytest.approx(0.1) and first.gaps == pytest.approx([0.11, 0.01])
    assert second.ttft == pytest.approx(0.21) and second.gaps == pytest.approx([0.01, 0.01])


def test_a_larger_chunk_computes_both_prompts_in_one_step() -> None:
    done = simulate_colocated(PAIR, SPEEDS, workers=1, chunk_tokens=1000)
    assert [each.ttft for each in done.requests] == pytest.approx([0.2, 0.2])


def test_two_tiers_keep_gaps_short_and_pay_the_hand_off_once() -> None:
    done = simulate_split(PAIR, SPEEDS, prefill_workers=1, decode_workers=1, handoff_seconds=0.005)
    first, second = done.requests
    assert (first.ttft, second.ttft) == (pytest.approx(0.1), pytest.approx(0.2))
    assert first.gaps == pytest.approx([0.015, 0.01]) and second.gaps == pytest.approx([0.015, 0.01])


def test_two_workers_share_the_requests() -> None:
    done = simulate_colocated(PAIR, SPEEDS, workers=2, chunk_tokens=512)
    assert [each.ttft for each in done.requests] == pytest.approx([0.1, 0.1])


def test_each_further_answer_lengthens_a_step() -> None:
    speeds = ServiceSpeeds(1000, 0.01, row_seconds=0.002, prompt_seconds=0.05)
    assert [speeds.step(rows) for rows in (0, 1, 3)] == pytest.approx([0.0, 0.01, 0.014])
    done = simulate_colocated(PAIR, speeds, workers=1, chunk_tokens=1000)
    assert done.requests[0].ttft == pytest.approx(0.3) and done.requests[0].gaps == pytest.approx([0.012, 0.012])


def test_an_answer_of_one_token_never_reaches_the_decode_tier() -> None:
    done = simulate_split([LoadRequest(100, 1, 0.0)], SPEEDS, prefill_workers=1, decode_workers=1, handoff_seconds=9.0)
    assert done.requests[0].gaps == [] and done.decode_seconds == 0.0 and done.seconds == pytest.approx(0.1)


def test_speeds_follow_from_two_prompts_and_two_batches() -> None:
    """The long prompt has 1000 tokens more and takes 0.5 s longer; seven more answers make a step 14 ms longer."""
    found = speeds_of(
        first_short=0.058, first_long=0.558, long_tokens=1000 + SHORT_TOKENS, step_alone=0.02, step_together=0.034
    )
    assert found.prefill_tokens_per_second == pytest.approx(2000) and found.prompt_seconds == pytest.approx(0.05)
    assert found.step_seconds == 0.02 and found.row_seconds == pytest.approx(0.002)


def test_speeds_of_a_noisy_measurement_are_cautious() -> None:
    found = speeds_of(first_short=0.5, first_long=0.4, long_tokens=400, step_alone=0.02, step_together=0.01)
    assert found.prefill_tokens_per_second == pytest.approx(1000)
    assert (found.row_seconds, found.prompt_seconds) == (0.0, 0.0)


# ---- the verdict

FAST = ServiceSpeeds(prefill_tokens_per_second=10_000, step_seconds=0.01)
ROWS = ServiceSpeeds(prefill_tokens_per_second=10_000, step_seconds=0.01, row_seconds=0.01)

ROWS_LOAD = {"every": 0.5, "prompt": 500, "answer": 60, "speeds": ROWS}


def judged(
    *, every: float, prompt: int, answer: int, limits: LatencyLimits, workers: int = 2, speeds: ServiceSpeeds = FAST
) -> Verdict:
    requests = [LoadRequest(prompt, answer, number * every) for number in range(80)]
    return judge_split(requests, Assumptions(speeds, workers), limits)


@pytest.mark.parametrize(
    ("load", "limits", "reason"),
    [
        # Four of an answer's 99 gaps hold a chunk of a prompt: 61 ms instead of 10 ms.
        ({"every": 0.5, "prompt": 2000, "answer": 100}, LatencyLimits(itl=0.03), SplitReason.WORTH),
        ({"every": 0.5, "prompt": 2000, "answer": 100}, LatencyLimits(), SplitReason.WORTH),
        # The same load with a limit that both meet.
        ({"every": 0.5, "prompt": 2000, "answer": 100}, LatencyLimits(itl=1.0), SplitReason.NOT_NEEDED),
        # A prompt of 40 tokens takes 4 ms, less than half a step.
        ({"every": 0.2, "prompt": 40, "answer": 100}, LatencyLimits(itl=0.03), SplitReason.SHORT_PROMPTS),
        # 1.2 s of work every 10 s on two workers.
        ({"every": 10.0, "prompt": 2000, "answer": 100}, LatencyLimits(itl=0.03), SplitReason.LOW_LOAD),
        # 0.8 s of prefill every 0.45 s: two workers can, one cannot.
        ({"every": 0.45, "prompt": 8000, "answer": 5}, LatencyLimits(ttft=2.0), SplitReason.PREFILL_BOUND),
        # 0.8 s of prefill every 0.1 s is four times what two workers can do.
        ({"every": 0.1, "prompt": 8000, "answer": 5}, LatencyLimits(ttft=2.0), SplitReason.OVERLOADED),
        # Each answer in a batch costs 10 ms, and one decode worker has them all.
        (ROWS_LOAD, LatencyLimits(tpot=0.02), SplitReason.DECODE_BOUND),
        ({"every": 0.5, "prompt": 2000, "answer": 100, "workers": 1}, LatencyLimits(), SplitReason.ONE_WORKER),
    ],
)  # fmt: skip
def test_the_verdict_has_the_right_reason(load: dict[str, float], limits: LatencyLimits, reason: SplitReason) -> None:
    verdict = judged(**load, limits=limits)  # type: ignore[arg-type]
    assert verdict.reason is reason and verdict.worth == (reason is SplitReason.WORTH)
    assert verdict.sentence.startswith("A split into tiers is ")
    assert ("not" in verdict.sentence[:30]) != verdict.worth


def test_the_sentence_holds_the_figures_of_both_arrangements() -> None:
    verdict = judged(every=0.5, prompt=2000, answer=100, limits=LatencyLimits(itl=0.03))
    assert verdict.split is not None and verdict.split.good_share == 1.0 and verdict.colocated.good_share < 0.2
    assert verdict.split.itl_p99 == pytest.approx(0.015, abs=0.003)  # the first gap holds the hand-off
    assert verdict.colocated.itl_p99 == pytest.approx(0.0612, abs=0.001)
    for part in ("1 prefill + 1 decode", "ITL p99 61 ms", "requests within the limits"):
        assert part in verdict.sentence


def test_the_best_of_all_splits_is_compared() -> None:
    """A prompt takes 0.8 s and one comes every 0.3 s: three of four workers must compute prompts."""
    verdict = judged(every=0.3, prompt=8000, answer=10, limits=LatencyLimits(ttft=1.0, itl=0.03), workers=4)
    assert verdict.split is not None
    assert (verdict.split.prefill_workers, verdict.split.good_share) == (3, 1.0)


def test_low_load_is_named_only_where_nothing_is_gained() -> None:
    """The order of the reasons: what disturbs nobody comes first, then load, then the tier that is too small."""
    calm = Forecast(0, 0.1, 0.2, 0.01, 0.05, 0.5, 1.0, busy_share=0.1, prefill_share=0.5)
    better = Forecast(1, 0.1, 0.2, 0.01, 0.01, 0.9, 1.0, busy_share=0.1, prefill_share=0.5)
    limits = LatencyLimits(itl=0.02)
    assert decide(calm, better, stretch_seconds=0.04, step_seconds=0.01, limits=limits) is SplitReason.WORTH
    assert decide(calm, calm, stretch_seconds=0.04, step_seconds=0.01, limits=limits) is SplitReason.LOW_LOAD
    busy = replace(calm, busy_share=0.8)
    assert decide(busy, busy, stretch_seconds=0.04, step_seconds=0.01, limits=limits) is SplitReason.NO_GAIN
    assert decide(calm, calm, stretch_seconds=0.004, step_seconds=0.01, limits=limits) is SplitReason.SHORT_PROMPTS
