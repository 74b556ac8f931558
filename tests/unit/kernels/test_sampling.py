"""Sampling: greedy ties, what filters keep, noise that depends on its key alone, logprobs, right frequencies."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, choice=0, position=0, **more):
    rows = len(logits)
    full = [
        np.broadcast_to(np.asarray(v, t), rows).copy()
        for v, t in (
            (temperature, np.float32),
            (top_k, np.int32),
            (top_p, np.float32),
            (min_p, np.float32),
            (seed, np.uint64),
            (choice, np.int32),
            (position, np.int32),
        )
    ]
    return bk.sample(logits, *full, **more)


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 64, 100, 1000, 5003])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.6, "top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_every_body_draws_the_same_tokens_and_logprob_bits(vocab, settings, rng, bits):
    logits = (rng.standard_normal((9, vocab)) * 3).astype(np.float32)
    wanted = np.array([0, 1, 5, 20, 3, 0, 2, 2, 2], np.int32)

    def compute():
        drawn = draw(logits, position=np.arange(9), n_top=wanted, **settings)
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8).ravel() for part in drawn])

    bits.same(compute)
    drawn = draw(logits, position=np.arange(9), n_top=wanted, **settings)
    expected = reference.logprobs(logits)
    assert np.allclose(drawn.logprobs, expected[np.arange(9), drawn.tokens], atol=2e-5)
    for row in range(9):
        n = min(int(wanted[row]), vocab)
        best = np.argsort(-logits[row], kind="stable")[:n]
        assert np.array_equal(drawn.top_ids[row, :n], best) and (drawn.top_ids[row, n:] == -1).all()
        assert np.allclose(drawn.top_logprobs[row, :n], expected[row, best], atol=2e-5)
        assert np.array_equal(drawn.top_logprobs[row, :n], logits[row, best] - drawn.totals[row])
    assert np.array_equal(drawn.logprobs, logits[np.arange(9), drawn.tokens] - drawn.totals)


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.zeros((4, 300), np.float32)
    logits[1, [7, 200]] = 2.0
    logits[2, [299, 150]] = 5.0
    logits[3] = -np.inf
    assert draw(logits, temperature=0.0).tokens.tolist() == [0, 7, 150, 0]


def test_top_k_of_equals_keeps_the_lowest_ids():
    logits = np.zeros((400, 50), np.float32)
    tokens = draw(logits, top_k=3, position=np.arange(400)).tokens
    assert set(tokens.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "settings",
    [
        (1.0, 5, 1.0, 0.0),
        (0.7, 0, 0.7, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.5, 8, 0.8, 0.05),
        (1.0, 0, 0.999, 0.0),
        (1.0, 1, 1.0, 0.0),
    ],
)
def test_filters_keep_exactly_what_the_reference_keeps(settings, rng):
    row = (rng.standard_normal(700) * 2).astype(np.float32)
    kept = reference.kept(row, *settings)
    temperature, top_k, top_p, min_p = settings
    tokens = draw(np.tile(row, (4000, 1)), temperature, top_k, top_p, min_p, position=np.arange(4000)).tokens
    assert set(tokens.tolist()) <= kept
    chances = np.exp(row / temperature - (row / temperature).max())
    likely = {i for i in kept if chances[i] / sum(chances[j] for j in kept) > 0.005}
    assert likely <= set(tokens.tolist())


def test_frequencies_follow_the_distribution(rng):
    row = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))
    for logits in (row, np.concatenate([row, np.full(100, -np.inf, np.float32)])):
        tokens = draw(np.tile(logits, (20000, 1)), seed=rng.integers(0, 2**63), position=np.arange(20000)).tokens
        shares = np.bincount(tokens, minlength=5)[:5] / 20000
        assert np.abs(shares - np.exp(row)).max() < 0.015 and tokens.max() < 5


def test_noise_depends_on_seed_choice_and_position_only(rng):
    logits = rng.standard_normal((1, 2000)).astype(np.float32)
    alone = int(draw(logits, seed=5, choice=1, position=9).tokens[0])
    crowd = np.concatenate([rng.standard_normal((6, 2000)).astype(np.float32), logits])
    assert int(draw(crowd, seed=[1, 2, 3, 4, 5, 6, 5], choice=1, position=9).tokens[6]) == alone
    for other in ({"seed": np.arange(100)}, {"choice": np.arange(100)}, {"position": np.arange(100)}):
        tokens = draw(np.tile(logits, (100, 1)), **{"seed": 5, "choice": 1, "position": 9, **other}).tokens
        assert len(set(tokens.tolist())) > 50


def test_a_filter_that_keeps_all_draws_the_same_token_as_no_filter(rng):
    logits = rng.standard_normal((50, 600)).astype(np.float32)
    plain = draw(logits, position=np.arange(50)).tokens
    assert np.array_equal(draw(logits, min_p=1e-30, position=np.arange(50)).tokens, plain)


def test_banned_ids_are_never_drawn_and_leave_logprobs_raw(rng):
    logits = rng.standard_normal((3, 100)).astype(np.float32)
    best = logits.argmax(1)
    banned, starts = np.array([best[0], best[2], 5], np.int32), np.array([0, 1, 1, 3], np.int32)
    drawn = draw(logits, temperature=0.0, banned=banned, banned_starts=starts, n_top=np.ones(3, np.int32))
    assert drawn.tokens[1] == best[1] and drawn.tokens[0] == np.argsort(-logits[0])[1] and drawn.tokens[2] != best[2]
    assert np.allclose(drawn.logprobs, reference.logprobs(logits)[np.arange(3), drawn.tokens], atol=1e-5)
    assert np.array_equal(drawn.top_ids[:, 0], best)
    for settings in ({}, {"top_k": 3}, {"top_p": 0.5}):
        tokens = draw(
            np.tile(logits[:1], (200, 1)),
            position=np.arange(200),
            banned=np.tile(np.int32(best[0]), 200),
            banned_starts=np.arange(201, dtype=np.int32),
            **settings,
        ).tokens
        assert best[0] not in tokens


def test_wrong_arguments_are_named(rng):
    logits = rng.standard_normal((2, 10)).astype(np.float32)
    with pytest.raises(bk.KernelError, match="banned"):
        draw(logits, banned=np.array([10], np.int32), banned_starts=np.array([0, 1, 1], np.int32))
    with pytest.raises(bk.KernelError, match="banned_starts"):
        draw(logits, banned=np.array([1], np.int32), banned_starts=np.array([0, 1, 2], np.int32))
    with pytest.raises(bk.KernelError, match="banned"):
        draw(logits, banned=np.array([1], np.int32))
    with pytest.raises(bk.KernelError, match="n_top"):
        draw(logits, n_top=np.array([1], np.int32))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 7, "top_p": 0.9}])
def test_adjusted_rows_are_drawn_from_their_copies_and_keep_the_logprobs_of_their_own(settings, rng, bits):
    logits = (rng.standard_normal((4, 1000)) * 3).astype(np.float32)
    adjusted = (rng.standard_normal((2, 1000)) * 3).astype(np.float32)
    index, wanted = np.array([1, -1, 0, -1], np.int32), np.full(4, 2, np.int32)

    def compute():
        drawn = draw(logits, n_top=wanted, adjusted=adjusted, adjusted_rows=index, **settings)
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8).ravel() for part in drawn])

    bits.same(compute)
    drawn = draw(logits, n_top=wanted, adjusted=adjusted, adjusted_rows=index, **settings)
    own, others = draw(logits, n_top=wanted, **settings), draw(adjusted, **settings)
    assert drawn.tokens.tolist() == [others.tokens[1], own.tokens[1], others.tokens[0], own.tokens[3]]
    assert np.array_equal(drawn.top_ids, own.top_ids) and np.array_equal(drawn.top_logprobs, own.top_logprobs)
    expected = reference.logprobs(logits)
    assert np.allclose(drawn.logprobs, expected[np.arange(4), drawn.tokens], atol=2e-5)


@pytest.mark.parametrize("index", [[2, -1], [-2, 0]])
def test_an_adjusted_row_outside_the_copies_is_refused(index):
    logits = np.zeros((2, 16), np.float32)
    with pytest.raises(bk.KernelError, match="adjusted_rows"):
        draw(logits, adjusted=np.zeros((2, 16), np.float32), adjusted_rows=np.array(index, np.int32))
    with pytest.raises(bk.KernelError, match="both or neither"):
        draw(logits, adjusted=np.zeros((2, 16), np.float32))
