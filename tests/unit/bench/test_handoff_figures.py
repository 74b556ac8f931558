"""The statistics of `bench.handoff`: what is compared with what, which prompt counts, and when a target is missed."""

from dataclasses import replace

import pytest

from bench.handoff_figures import (
    MeshRun,
    PairedRun,
    Spreads,
    keys,
    last_group_bytes,
    misses,
    pair_up,
    summarise,
    throttle_rate,
    throttled_bound_ms,
)
from bench.spread import Spread

RUN = MeshRun(first_token_ms=110.0, compute_ms=101.0, exposed_ms=2.0, bytes=1000, bytes_before_first=950)


def flat(value: float) -> Spread:
    return Spread(value, value, value)


def flat_all(figures: dict[str, float]) -> Spreads:
    return {key: flat(value) for key, value in figures.items()}


def unthrottled(**changes: float) -> Spreads:
    figures = {
        "hidden_share": 0.95,
        "exposed_ms": 2.0,
        "single_ms": 100.0,
        "mesh_minus_single_ms": 10.0,
        "push_slowdown": 1.01,
    }
    return flat_all(figures | changes)


def throttled(exposed_ms: float, bound_ms: float, rate: float = 1e6) -> Spreads:
    figures = {"throttled_exposed_ms": exposed_ms, "throttled_bound_ms": bound_ms, "throttle_bytes_per_s": rate}
    return flat_all(figures)


def test_each_mesh_run_is_compared_with_the_mean_of_the_runs_around_it() -> None:
    pairs = pair_up([RUN, RUN], [100.0, 110.0, 130.0])
    assert [pair.single_ms for pair in pairs] == [105.0, 120.0]


def test_a_machine_that_slows_down_steadily_shows_no_slowdown_of_pushing() -> None:
    single_ms = [100.0 + 20 * step for step in range(6)]
    mesh = [replace(RUN, compute_ms=110.0 + 20 * step) for step in range(5)]
    assert [pair.push_slowdown for pair in pair_up(mesh, single_ms)] == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("single", [1, 2, 4])
def test_mesh_runs_without_a_single_run_on_either_side_are_refused(single: int) -> None:
    with pytest.raises(ValueError, match="2 mesh runs need 3 single runs"):
        pair_up([RUN, RUN], [100.0] * single)


def test_the_median_of_pairs_counts_not_the_difference_of_medians() -> None:
    pairs = [PairedRun(replace(RUN, first_token_ms=first), single) for first, single in [(10, 9), (100, 50), (60, 58)]]
    summary = summarise(pairs)
    assert summary["mesh_minus_single_ms"] == Spread(2, 1, 50)
    assert summary["single_ms"].median == 50


def test_the_hidden_share_is_what_had_landed_when_the_first_token_was_sampled() -> None:
    assert summarise([PairedRun(RUN, 100.0)])["hidden_share"].median == 0.95


def test_the_worse_prompt_counts_in_every_figure_by_itself() -> None:
    one = unthrottled(hidden_share=0.91, exposed_ms=1.0, push_slowdown=1.0)
    other = unthrottled(hidden_share=1.0, exposed_ms=7.0, push_slowdown=1.015)
    found = keys([one, other], [throttled(1.0, 2.0)])
    assert (found["hidden_share"], found["exposed_ms"], found["push_slowdown"]) == (0.91, 7.0, 1.015)
    assert found == keys([other, one], [throttled(1.0, 2.0)])


def test_the_prompt_nearest_to_its_own_allowance_counts_with_its_own_single_time() -> None:
    """30 ms more on 3 s are allowed, 20 ms more on 0.1 s are not."""
    long = unthrottled(single_ms=3000.0, mesh_minus_single_ms=30.0)
    short = unthrottled(single_ms=100.0, mesh_minus_single_ms=20.0)
    found = keys([long, short], [throttled(1.0, 2.0)])
    assert (found["mesh_minus_single_ms"], found["single_ms"]) == (20.0, 100.0)
    assert misses(found) == ["mesh_minus_single_ms is 20, wanted <= 16"]


def test_the_throttled_prompt_nearest_to_its_own_bound_counts() -> None:
    found = keys([unthrottled()], [throttled(70.0, 80.0, 1e6), throttled(14.0, 13.0, 2e6)])
    assert (found["throttled_exposed_ms"], found["throttled_bound_ms"]) == (14.0, 13.0)
    assert found["throttle_bytes_per_s"] == 2_000_000
    assert type(found["throttle_bytes_per_s"]) is int


GOOD = keys([unthrottled()], [throttled(1.0, 2.0)])


def test_figures_on_their_limits_miss_nothing() -> None:
    limits = {
        "hidden_share": 0.9,
        "exposed_ms": 10.0,
        "single_ms": 100.0,
        "mesh_minus_single_ms": 16.0,
        "push_slowdown": 1.02,
        "throttled_exposed_ms": 2.0,
    }
    assert misses(GOOD | limits) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_share", 0.899),
        ("exposed_ms", 10.1),
        ("mesh_minus_single_ms", 16.1),
        ("push_slowdown", 1.021),
        ("throttled_exposed_ms", 2.1),
        ("exposed_ms", float("nan")),
    ],
)
def test_every_target_can_be_missed(key: str, value: float) -> None:
    (miss,) = misses(GOOD | {key: value})
    assert miss.startswith(f"{key} is ")


def test_the_throttle_lets_half_more_through_than_prefill_produces() -> None:
    assert throttle_rate(1000, token_bytes=12, single_ms=500.0) == 1.5 * 24000


def test_the_bound_is_the_last_group_at_the_throttled_rate_and_ten_milliseconds() -> None:
    assert throttled_bound_ms(50_000, 1e6) == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("prompt_tokens", "layer_group", "spans"),
    [
        (32, 2, 1 * 2),
        (33, 2, 2 * 2),
        (1024, 2, 16 * 2),  # two chunks of 512: the last one fills 16 pages
        (1025, 2, 1 * 2),  # a third chunk of one token
        (512, 24, 16 * 24),
        (512, 7, 16 * 3),  # groups of 7, 7, 7 and 3
        (512, 1, 16 * 1),
    ],
)
def test_the_last_group_is_the_last_layers_of_the_last_chunks_pages(
    prompt_tokens: int, layer_group: int, spans: int
) -> None:
    found = last_group_bytes(
        prompt_tokens, chunk_tokens=512, page_tokens=32, layers=24, layer_group=layer_group, layer_bytes=100
    )
    assert found == spans * 100
