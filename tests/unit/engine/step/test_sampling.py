"""Sampling by the engine: masks, positions, logprobs, seeds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import baton_kernels
from engine.step.plan import Piece, Sampled
from engine.step.sampling import sample
from mesh.messages.jobs import Sampling

VOCAB = 50


def draw(seed: int, rows: int = 1) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def piece(sampling: Sampling | None, *, sampled: int = 1, position: int = 0, key: int = 1) -> Piece:
    return Piece(key, (0,) * max(1, sampled), 0, (0,), sampled, position, sampling)


def one(
    logits: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", position: int = 0, **parameters: object
) -> Sampled:
    return sample([piece(Sampling(**parameters), position=position)], logits)[0][0]  # type: ignore[arg-type]


def test_greedy_takes_the_best_and_the_lowest_of_equals() -> None:
    logits = draw(1)
    assert one(logits).token == int(logits[0].argmax())
    logits[0, [7, 30]] = 20.0
    assert one(logits).token == 7


def test_logprobs_are_of_the_raw_distribution_and_sorted() -> None:
    logits = draw(2)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    got = one(logits, temperature=0.5, top_k=3, seed=9, top_logprobs=5)
    assert got.logprob == pytest.approx(exact[got.token], abs=1e-5)
    assert list(got.top_ids) == list(np.argsort(-exact)[:5])
    assert got.top_logprobs == pytest.approx(exact[list(got.top_ids)], abs=1e-5)
    assert one(logits).top_ids == () and one(logits, top_logprobs=0).top_ids == ()


def test_named_tokens_have_the_logprobs_that_a_list_of_all_has() -> None:
    logits = draw(12, rows=2)
    logits[1, [4, 9]] = -np.inf, np.nan
    whole = one(logits[:1], top_logprobs=VOCAB)
    bits = dict(zip(whole.top_ids, whole.top_logprobs, strict=True))
    likeliest, last = whole.top_ids[0], whole.top_ids[-1]
    for ids in ((likeliest,), (last, 7, likeliest), tuple(range(VOCAB))):
        named = Sampling(temperature=0.7, seed=5, top_logprobs=3, logprob_ids=ids)
        plain = replace(named, logprob_ids=())
        mine, other = sample([piece(named), piece(plain, key=2)], np.repeat(logits[:1], 2, axis=0))
        assert mine[0].top_ids == ids and mine[0].top_logprobs == tuple(bits[token] for token in ids)
        assert other[0].top_ids == whole.top_ids[:3]  # the request beside it has its own
        assert (mine[0].token, mine[0].logprob) == (other[0].token, other[0].logprob)
    odd = one(logits[1:], logprob_ids=(4, 9)).top_logprobs
    assert odd[0] == -np.inf and np.isnan(odd[1])


def test_named_tokens_cost_no_list_however_unlikely_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, kernel = list[tuple[int, ...]](), baton_kernels.sample

    def counted(*args: Any, **kwargs: Any) -> Any:
        drawn = kernel(*args, **kwargs)
        shapes.append(drawn.top_ids.shape)
        return drawn

    monkeypatch.setattr(baton_kernels, "sample", counted)
    logits = draw(12, rows=2)
    named = Sampling(temperature=0.7, seed=5, top_logprobs=3, logprob_ids=(int(logits[0].argmin()), 7))
    sample([piece(named), piece(replace(named, temperature=0.0), key=2)], logits)
    assert shapes == [(2, 0)], "the one call that draws the tokens has their logprobs, too"


def test_a_row_that_lists_the_whole_vocabulary_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, shapes = draw(13, rows=3), list[tuple[int, ...]]()
    logits[0, 7] = -np.inf
    kernel = baton_kernels.sample

    def counted(*args: Any, **kwargs: Any) -> Any:
        drawn = kernel(*args, **kwargs)
        shapes.append(drawn.top_ids.shape)
        return drawn

    monkeypatch.setattr(baton_kernels, "sample", counted)
    few = Sampling(temperature=0.7, seed=5, top_logprobs=3)
    pieces = [piece(replace(few, top_logprobs=VOCAB)), piece(few, key=2), piece(few, key=3)]
    ((wide,), (one,), (other,)) = sample(pieces, logits)
    assert shapes == [(3, 3), (1, VOCAB)], "the wide list stands in a call of its own"
    plain = baton_kernels.sample(logits[:1], n_top=np.array([VOCAB], np.int32), **sampling_arguments())
    assert wide.top_ids == tuple(plain.top_ids[0].tolist()) and wide.top_ids[-1] == 7
    assert np.array(wide.top_logprobs, np.float32).tobytes() == plain.top_logprobs[0].tobytes()
    assert len(one.top_ids) == len(other.top_ids) == 3
    assert sample(pieces[:1], logits[:1]) == ((wide,),)


def sampling_arguments() -> dict[str, Any]:
    zeros = np.zeros(1, np.int32)
    return {
        "temperature": np.zeros(1, np.float32),
        "top_k": zeros,
        "top_p": np.ones(1, np.float32),
        "min_p": np.zeros(1, np.float32),
        "seed": np.zeros(1, np.uint64),
        "choice": zeros,
        "position": zeros,
    }


def test_stop_ids_are_masked_until_enough_tokens_were_emitted() -> None:
    logits = draw(3)
    best, second = np.argsort(-logits[0])[:2]
    parameters = {"min_tokens": 4, "stop_ids": (int(best), 7, VOCAB + 5, -3)}
    assert one(logits, position=3, **parameters).token == second  # the token would be the fourth
    assert one(logits, position=4, **parameters).token == best


def test_rows_of_a_piece_have_consecutive_positions() -> None:
    rows = np.repeat(draw(4), 3, axis=0)
    sampling = Sampling(temperature=1.5, seed=77)
    together = sample([piece(sampling, sampled=3, position=5)], rows)[0]
    apart = tuple(sample([piece(sampling, position=5 + index)], rows[:1])[0][0] for index in range(3))
    assert together == apart


def test_a_seeded_draw_depends_on_seed_choice_and_position_only() -> None:
    logits = draw(5)
    crowd = np.concatenate([draw(6, 2), logits, draw(7)])
    sampling = Sampling(temperature=1.0, seed=2**64 - 1, choice=2)
    alone = sample([piece(sampling, position=8)], logits)[0]
    others = [piece(Sampling(temperature=0.3, seed=1), sampled=2), piece(None, sampled=0)]
    mixed = sample([*others, piece(sampling, position=8), piece(Sampling(top_p=0.1, temperature=1.0))], crowd)
    assert mixed[2] == alone and mixed[1] == () and len(mixed[0]) == 2
    changes = [{"seed": 3}, {"choice": 3}, {"position": 9}]
    flat = np.zeros((1, VOCAB), np.float32)
    base = {"temperature": 1.0, "seed": 2, "choice": 2, "position": 8}
    drawn = {one(flat, **(base | change)).token for change in [{}, *changes]}  # type: ignore[arg-type]
    assert len(drawn) > 1 and one(flat, **base).token == one(flat, **base).token  # type: ignore[arg-type]


def test_filters_keep_what_they_say() -> None:
    logits = draw(8)
    order = np.argsort(-logits[0])
    chances = np.exp(logits[0] / 2.0 - (logits[0] / 2.0).max())
    top_p = int(np.searchsorted(np.cumsum(np.sort(chances / chances.sum())[::-1]), 0.6)) + 1
    cases = [
        ({"top_k": 4}, set(order[:4])),
        ({"top_p": 0.6}, set(order[:top_p])),
        ({"min_p": 0.3}, set(np.flatnonzero(chances >= 0.3))),
    ]
    for parameters, kept in cases:
        seen = {one(logits, temperature=2.0, seed=seed, **parameters).token for seed in range(300)}
        assert seen <= {int(token) for token in kept} and len(seen) > 1, parameters


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    rows = np.repeat(logits, 4000, axis=0)
    (drawn,) = sample([piece(Sampling(temperature=1.0, seed=5), sampled=4000)], rows)
    counts = np.bincount([entry.token for entry in drawn], minlength=4) / 4000
    assert counts == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


def test_extreme_parameters_still_yield_a_token_of_the_vocabulary() -> None:
    logits = draw(9)
    best = int(logits[0].argmax())
    for parameters in ({"temperature": 1e-38}, {"temperature": 1.0, "top_p": 0.0}, {"temperature": 1.0, "min_p": 1.0}):
        assert one(logits, seed=3, **parameters).token == best, parameters
    assert one(logits, temperature=1.0, top_k=1 << 40) == one(logits, temperature=1.0)
    assert len(one(logits, top_logprobs=VOCAB + 1).top_ids) == VOCAB
    assert 0 <= one(logits, temperature=float("inf")).token < VOCAB
    assert 0 <= one(logits, min_tokens=1, stop_ids=tuple(range(VOCAB))).token < VOCAB


def test_logits_and_plan_must_fit() -> None:
    with pytest.raises(ValueError, match="2 rows of logits for 1"):
        sample([piece(Sampling())], draw(1, 2))
    assert sample([piece(None, sampled=0)], draw(1)[:0]) == ((),)


@pytest.mark.parametrize("temperature", [1e-30, 1e-37, 1e-38, 1e-45])
def test_the_coldest_temperatures_take_the_best(temperature: float) -> None:
    logits = draw(9) * 1000
    for filters in ({}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}):
        assert one(logits, temperature=temperature, seed=3, **filters).token == int(logits[0].argmax())
