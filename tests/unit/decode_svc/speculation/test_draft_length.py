"""Draft length follows acceptance and cost, down to none, and comes back when drafts would pay again."""

from collections.abc import Callable
from itertools import pairwise

from decode_svc.speculation.draft_length import (
    FIRST_WAIT,
    PLAIN_STEPS,
    REFRESH_STEPS,
    Acceptance,
    Candidate,
    DraftLengths,
    best_length,
)

MOST = 8
Cost = Callable[[int, float], float]  # (batch, drafts for each) -> seconds


def bandwidth_bound(batch: int, each: float) -> float:
    """Reading the weights is what a step takes; a draft's pass is a tenth of it."""
    return 0.020 + 0.0002 * batch * (1 + each) + 0.002 * each


def compute_bound(batch: int, each: float) -> float:
    """From a dozen rows on every row costs its arithmetic."""
    return max(0.020, 0.020 / 13 * batch * (1 + each)) + 0.002 * each * (1 + batch / 13)


def run(
    draft_lengths: DraftLengths, batch: int, steps: int, cost: Cost, rate: float, ones: list[Acceptance] | None = None
) -> list[int]:
    """The longest draft of each step; every request accepts the same share of its own."""
    ones = ones or [Acceptance() for _ in range(batch)]
    lengths, debt = [], [(index + 0.5) / batch for index in range(batch)]
    for _ in range(steps):
        chosen = draft_lengths.lengths([Candidate(one, MOST) for one in ones])
        for index, (one, length) in enumerate(zip(ones, chosen, strict=True)):
            accepted = 0
            while accepted < length and debt[index] + rate >= 1:
                accepted, debt[index] = accepted + 1, debt[index] + rate - 1
            if length:
                debt[index] = (debt[index] + rate) if accepted < length else debt[index]
                draft_lengths.note(one, length, accepted)
        draft_lengths.measure(batch, sum(chosen), cost(batch, sum(chosen) / batch))
        lengths.append(max(chosen))
    return lengths


def new(prior: float = 0.6) -> DraftLengths:
    return DraftLengths(longest=MOST, prior=prior)


def test_the_best_length_grows_with_acceptance_and_shrinks_with_cost() -> None:
    by_rate = [best_length(rate, 0.1, MOST) for rate in (0.0, 0.1, 0.3, 0.6, 0.8, 0.95, 1.0)]
    assert by_rate == sorted(by_rate) and by_rate[0] == 0 and by_rate[-1] == MOST and 2 <= by_rate[3] <= 5
    by_cost = [best_length(0.6, extra, MOST) for extra in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0)]
    assert by_cost == sorted(by_cost, reverse=True) and by_cost[0] == MOST and by_cost[-2:] == [0, 0]


def test_the_first_steps_are_plain_so_that_there_is_something_to_compare_with() -> None:
    lengths = run(new(), 1, 10, bandwidth_bound, 0.7)
    assert lengths[:PLAIN_STEPS] == [0] * PLAIN_STEPS and all(lengths[PLAIN_STEPS:])


def test_a_lone_request_with_good_drafts_gets_long_ones() -> None:
    assert max(run(new(), 1, 100, bandwidth_bound, 0.9)) >= 5
    assert max(run(new(), 1, 100, bandwidth_bound, 0.4)[20:]) <= 3


def test_at_batch_32_bound_by_arithmetic_it_is_off_from_the_start() -> None:
    draft_lengths = new()
    for batch in (1, 8, 16):
        run(draft_lengths, batch, 12, compute_bound, 0.6)
    assert not any(run(draft_lengths, 32, 300, compute_bound, 0.6))


def test_a_batch_of_32_that_comes_at_once_is_off_after_a_step_or_two() -> None:
    lengths = run(new(), 32, 300, compute_bound, 0.6)
    assert lengths[PLAIN_STEPS] == 1 and not any(lengths[PLAIN_STEPS + 2 :])


def test_at_batch_32_bound_by_bandwidth_it_stays_on() -> None:
    assert all(run(new(), 32, 60, bandwidth_bound, 0.7)[10:])


def test_a_first_step_that_has_to_warm_up_does_not_keep_drafts_off() -> None:
    late = [5.0]

    def cost(batch: int, each: float) -> float:
        return bandwidth_bound(batch, each) + (late.pop() if each and late else 0.0)

    lengths = run(new(), 1, 40, cost, 0.8)
    assert not late and all(lengths[PLAIN_STEPS:])


def test_when_the_batch_shrinks_it_drafts_again() -> None:
    draft_lengths = new()
    run(draft_lengths, 1, 12, compute_bound, 0.6)
    run(draft_lengths, 32, 100, compute_bound, 0.6)
    assert all(run(draft_lengths, 1, 40, compute_bound, 0.6))


def test_a_request_whose_drafts_are_refused_stops_and_tries_again_seldom() -> None:
    draft_lengths, one = new(), [Acceptance()]
    lengths = run(draft_lengths, 1, 600, bandwidth_bound, 0.0, one)
    tries = [step for step, length in enumerate(lengths) if length and step > 60]
    assert 2 <= len(tries) <= 6, tries
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == sorted(gaps) and gaps[0] >= FIRST_WAIT
    assert sum(lengths[60:]) == len(tries), "a try is one draft"


def test_a_request_whose_text_becomes_foreseeable_is_drafted_again() -> None:
    draft_lengths, one = new(), [Acceptance()]
    run(draft_lengths, 1, 200, bandwidth_bound, 0.0, one)
    assert run(draft_lengths, 1, 400, bandwidth_bound, 1.0, one)[-1] >= 4


def test_a_try_is_not_worth_reading_a_long_text_for() -> None:
    draft_lengths, one = new(0.0), Acceptance()
    for _ in range(PLAIN_STEPS):
        draft_lengths.measure(1, 0, 0.02)
    far = [draft_lengths.lengths([Candidate(one, MOST, unread=10_000)])[0] for _ in range(200)]
    assert not any(far)
    assert any(draft_lengths.lengths([Candidate(one, MOST, unread=10)])[0] for _ in range(200))


def test_a_plain_step_now_and_then_keeps_the_comparison_fresh() -> None:
    lengths = run(new(), 1, 3 * REFRESH_STEPS, bandwidth_bound, 0.8)[PLAIN_STEPS:]
    assert 2 <= lengths.count(0) <= 4


def test_equal_measurements_give_equal_lengths() -> None:
    assert run(new(), 4, 200, compute_bound, 0.5) == run(new(), 4, 200, compute_bound, 0.5)


def test_a_clock_that_stands_still_harms_no_request() -> None:
    assert all(0 <= length <= MOST for length in run(new(), 2, 50, lambda batch, each: 0.0, 0.5))
