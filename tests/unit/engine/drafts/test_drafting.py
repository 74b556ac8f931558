"""Drafts change only the speed of a text: tokens and logprob bits are the same, whatever is proposed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.drafts.acceptance import accepted, next_slot
from engine.drafts.drafting import Reading, proposed
from engine.step.plan import Drafting, Piece, Plan, Sampled
from mesh.messages.jobs import Sampling
from tests.unit.engine.speculating import DraftedRequest, run_to_end

Words = Callable[..., list[int]]
GREEDY = Sampling(max_tokens=40)
SEEDED = Sampling(temperature=0.9, seed=11, max_tokens=40, top_logprobs=3)
FILTERED = Sampling(temperature=1.2, seed=5, max_tokens=40, top_k=50, top_p=0.9, min_p=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama2", dtype="bf16", layers=3)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A draft that has nothing in common with the model but its vocabulary."""
    return tiny(tmp_path / "draft", "qwen3", dtype="bf16", seed=9)


def alone(engine: Any, folder: Path, prompt: Sequence[int], sampling: Sampling) -> list[Sampled]:
    """The tokens of the same request without drafts, one at a time."""
    one = DraftedRequest(prompt, sampling, tuple(range(24)), drafted=False)
    run_to_end(engine(folder).runner, [one])
    return one.emitted


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, FILTERED])
@pytest.mark.parametrize("propose", [1, 4])
def test_a_draft_that_is_always_wrong_changes_no_bit(
    sampling: Sampling, propose: int, folder: Path, other: Path, engine: Any, words: Words
) -> None:
    one = DraftedRequest(words(45), sampling, tuple(range(24)), propose)
    run_to_end(engine(folder, draft=other).runner, [one])
    assert one.emitted == alone(engine, folder, words(45), sampling)
    assert one.proposed > 20 and one.accepted < 0.2 * one.proposed


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, FILTERED])
@pytest.mark.parametrize("page_tokens", [16, 32])
def test_the_model_itself_as_its_draft_is_always_accepted_because_it_samples_with_the_same_noise(
    sampling: Sampling, page_tokens: int, folder: Path, engine: Any, words: Words
) -> None:
    one = DraftedRequest(words(45), sampling, tuple(range(24)), propose=4)
    run_to_end(engine(folder, draft=folder, page_tokens=page_tokens).runner, [one], page_tokens)
    assert one.emitted == alone(engine, folder, words(45), sampling)
    assert one.accepted == one.proposed == 31  # the prompt yields 1, seven steps 5 each, and the last 3 and 1


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_tokens_looked_up_are_verified_like_any_draft(
    sampling: Sampling, folder: Path, other: Path, engine: Any, words: Words
) -> None:
    truth = [one.token for one in alone(engine, folder, words(45), sampling)]

    def half_right(text: Sequence[int], most: int) -> list[int]:
        ahead = truth[len(text) - 45 :][:most]
        return [token if index != 2 else token ^ 1 for index, token in enumerate(ahead)]

    for draft in (None, other):
        one = DraftedRequest(words(45), sampling, tuple(range(24)), 4, half_right, drafted=draft is not None)
        run_to_end(engine(folder, draft=draft).runner, [one])
        assert [said.token for said in one.emitted] == truth
        assert 0.4 * one.proposed < one.accepted < 0.7 * one.proposed


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, FILTERED])
@pytest.mark.parametrize("vocab", [256, 288])
def test_a_draft_with_a_vocabulary_of_another_size_changes_no_bit(
    sampling: Sampling, vocab: int, tmp_path: Path, folder: Path, engine: Any, words: Words
) -> None:
    """A smaller one cannot read some tokens of the text; a larger one may propose tokens that the model lacks."""
    draft = tiny(tmp_path / "padded", "llama2", dtype="bf16", layers=3, vocab=vocab)
    prompt = [*words(40), 261, 257, 3, 260, 259]
    one = DraftedRequest(prompt, sampling, tuple(range(24)), propose=4)
    run_to_end(engine(folder, draft=draft).runner, [one])
    assert one.emitted == alone(engine, folder, prompt, sampling)
    assert one.proposed > 0


def test_proposals_end_before_a_token_that_the_model_lacks() -> None:
    piece = Piece(1, (7,), 3, (0,), 1, 0, GREEDY)
    readings = [Reading(0, piece, 3)]
    assert proposed([piece], readings, [[5], [262], [6]], vocab=262) == ((5,),)
    assert proposed([piece], readings, [[5], [261], [6]], vocab=262) == ((5, 261, 6),)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("context", [32, 64, 72])
def test_behind_its_own_context_a_draft_proposes_nothing_and_changes_no_bit(
    sampling: Sampling, context: int, tmp_path: Path, folder: Path, engine: Any, words: Words
) -> None:
    draft = tiny(tmp_path / "short", "llama2", dtype="bf16", layers=3, context=context)
    one = DraftedRequest(words(45), sampling, tuple(range(24)), propose=4, chunk=17)
    run_to_end(engine(folder, draft=draft).runner, [one])
    assert one.emitted == alone(engine, folder, words(45), sampling)
    # The same weights, so every proposal is right; the last token it reads stands in its last slot but one.
    assert one.accepted == one.proposed
    assert (one.proposed == 0) if context == 32 else (0 < one.proposed < context - 45)


def test_a_mixed_batch_says_what_each_request_says_alone(folder: Path, other: Path, engine: Any, words: Words) -> None:
    kinds = [
        (GREEDY, 0, True),
        (SEEDED, 4, True),
        (FILTERED, 2, True),
        (SEEDED, 3, False),
        (replace(GREEDY, max_tokens=7), 9, True),
    ]
    talks = [
        DraftedRequest(
            words(20 + 30 * index, seed=index),
            sampling,
            tuple(range(index * 8, index * 8 + 8)),
            propose,
            chunk=17,
            drafted=drafted,
        )
        for index, (sampling, propose, drafted) in enumerate(kinds)
    ]
    run_to_end(engine(folder, draft=folder, pool_pages=40).runner, talks)
    for one in talks:
        assert one.emitted == alone(engine, folder, one.prompt, one.sampling)
    assert talks[1].accepted == talks[1].proposed > 20
    assert talks[4].proposed <= 5  # never beyond max_tokens


def test_what_rejected_drafts_leave_behind_is_never_read(folder: Path, other: Path, engine: Any, words: Words) -> None:
    """After every step each byte of the slots behind the text is poisoned, in the model's layers and in the draft's."""
    ours, one = (
        engine(folder, draft=other, page_tokens=16),
        DraftedRequest(words(37), SEEDED, tuple(range(24)), propose=4),
    )
    kept = engine(folder, draft=other, page_tokens=16)
    clean = DraftedRequest(words(37), SEEDED, tuple(range(24)), propose=4)
    run_to_end(kept.runner, [clean], 16)
    step = 0
    while not one.ended:
        piece = one.piece(0, 16)
        result = ours.runner.compute(Plan(step, (piece,)))
        one.take(piece, result.sampled[0], result.proposed[0])
        poison(ours, one.done, one.read)
        step += 1
    assert (one.emitted, one.proposed, one.accepted) == (clean.emitted, clean.proposed, clean.accepted)


def poison(ours: Any, done: int, read: int) -> None:
    """Writes NaN into all slots: from `done` on in the model's layers, from `read` on in the draft's."""
    size, behind = ours.page_tokens, ours.weights.config.layers * ours.runner.layer_bytes
    pages = ours.pool.reshape(ours.pool_pages, -1)
    for layers, slot, weights in ((pages[:, :behind], done, ours.weights), (pages[:, behind:], read, ours.draft)):
        config = weights.config
        for page in range(ours.pool_pages):
            first = max(0, min(size, slot - page * size))
            tiles = layers[page].view(np.uint16).reshape(config.layers, 2, config.kv_heads, size * config.head_dim)
            tiles[:, 0].reshape(-1, config.head_dim // 2, size, 2)[:, :, first:] = 0xFFFF
            values = tiles[:, 1].reshape(-1, size // 2, config.head_dim, 2)
            for at in range(first, size):
                values[:, at // 2, :, at % 2] = 0xFFFF


def test_the_drafts_pages_do_not_depend_on_how_the_prompt_was_cut(
    folder: Path, other: Path, engine: Any, words: Words
) -> None:
    pools, first = [], []
    for chunk in (100, 33, 7, 1):
        ours = engine(folder, draft=other)
        one = DraftedRequest(words(100), replace(GREEDY, max_tokens=1), tuple(range(24)), chunk=chunk)
        run_to_end(ours.runner, [one])
        pools.append(ours.pool)
        first.append(one.emitted)
    assert all((pool == pools[0]).all() for pool in pools) and first.count(first[0]) == 4


def test_text_that_the_draft_did_not_read_along_is_read_when_it_is_named(
    folder: Path, engine: Any, words: Words
) -> None:
    ours, one = engine(folder, draft=folder), DraftedRequest(words(40), SEEDED, tuple(range(24)), drafted=False)
    step = 0
    while len(one.emitted) < 20:
        piece = one.piece(0, 32)
        one.take(piece, ours.runner.compute(Plan(step, (piece,))).sampled[0], ())
        step += 1
    one.drafted, one.propose = True, 4
    run_to_end(ours.runner, [one])
    assert one.emitted == alone(engine, folder, words(40), SEEDED)
    assert one.accepted == one.proposed > 10


def test_a_request_ends_inside_an_accepted_run_and_nothing_is_proposed_behind_it(
    folder: Path, engine: Any, words: Words
) -> None:
    truth = [one.token for one in alone(engine, folder, words(45), SEEDED)]
    stop = next(token for index, token in enumerate(truth) if index > 12 and token not in truth[:index])
    for sampling in (
        replace(SEEDED, stop_ids=(stop,)),
        replace(SEEDED, stop_ids=(truth[3], stop), min_tokens=9),
        replace(SEEDED, max_tokens=18),
    ):
        ours, one = engine(folder, draft=folder), DraftedRequest(words(45), sampling, tuple(range(24)), propose=4)
        run_to_end(ours.runner, [one])
        assert one.emitted == alone(engine, folder, words(45), sampling)
        assert one.drafts == () and 0 <= one.proposed - one.accepted <= 4 < one.accepted


def test_proposals_stay_within_pages_and_context(folder: Path, other: Path, engine: Any, words: Words) -> None:
    ours = engine(folder, draft=other, pool_pages=17)
    pages, sampling = tuple(range(16)), Sampling(max_tokens=1000)

    def proposed(rows: int, pages: Sequence[int]) -> int:
        piece = Piece(1, tuple(words(rows)), 0, tuple(pages), 1, 0, sampling, Drafting(0, (), 8))
        return len(ours.runner.compute(Plan(0, (piece,))).proposed[0])

    assert [proposed(rows, pages[:2]) for rows in (50, 56, 57, 60, 63, 64)] == [8, 8, 7, 4, 1, 0]
    assert [proposed(rows, pages) for rows in (503, 504, 510, 511, 512)] == [8, 7, 1, 0, 0]
    assert (ours.pool.reshape(17, -1)[16] == 0xFF).all()


def test_a_step_without_drafting_leaves_the_drafts_layers_alone(
    folder: Path, other: Path, engine: Any, words: Words
) -> None:
    ours = engine(folder, draft=other)
    result = ours.runner.compute(Plan(0, (ours.piece(words(40), sampled=1),)))
    behind = ours.weights.config.layers * ours.runner.layer_bytes
    assert (ours.pool.reshape(24, -1)[:, behind:] == 0xFF).all() and result.proposed == ((),)
    assert engine(folder).runner.compute(Plan(0, (ours.piece(words(40), sampled=1),))).proposed == ()


@pytest.mark.parametrize("propose", [0, 2])
def test_the_drafts_layers_are_reported_behind_the_models_when_they_are_in_the_pages(
    propose: int, folder: Path, other: Path, engine: Any, words: Words
) -> None:
    ours, reported = engine(folder, draft=other, table=(3, 1)), list[tuple[int, int]]()
    behind = ours.weights.config.layers * ours.runner.layer_bytes
    seen: list[bytes] = []

    def on_layers(first: int, count: int) -> None:
        reported.append((first, count))
        if first == 3:
            seen.append(ours.pool.reshape(24, -1)[3, behind:].tobytes())

    piece = ours.piece(words(40), sampled=1, drafting=Drafting(0, (), propose))
    ours.runner.compute(Plan(0, (piece,)), on_layers)
    assert sorted(reported) == [(0, 1), (1, 1), (2, 1), (3, 2)] and ours.runner.layers == 5
    assert reported[0 if propose == 0 else -1] == (3, 2)  # a prompt's go first, to travel while the model computes
    assert seen == [ours.pool.reshape(24, -1)[3, behind:].tobytes()]


def test_an_acceptance_is_the_longest_run_that_equals_the_samples() -> None:
    sampling = Sampling(max_tokens=100, stop_ids=(7,))
    piece = Piece(1, (1, 2, 3, 4), 10, (0,), 4, 20, sampling)

    def count(*tokens: int) -> int:
        return accepted(piece, [Sampled(token, 0.0) for token in tokens])

    assert [count(2, 3, 4, 5), count(2, 3, 9, 5), count(9, 3, 4, 5), count(2, 9, 4, 5)] == [3, 2, 0, 1]
    assert next_slot(piece, 0) == 11 and next_slot(piece, 3) == 14
    stops = replace(piece, tokens=(1, 7, 3, 4))
    assert accepted(stops, [Sampled(token, 0.0) for token in (7, 3, 4, 5)]) == 0
    assert accepted(replace(piece, position=97), [Sampled(token, 0.0) for token in (2, 3, 4, 5)]) == 2
    prompt = Piece(1, (1, 2, 3), 5, (0,))
    assert accepted(prompt, ()) == 0 and next_slot(prompt, 0) == 8


@pytest.mark.parametrize("wrong", [{"start": -1}, {"start": 0, "propose": -1}])
def test_a_drafting_of_negative_numbers_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="draft"):
        Drafting(**wrong)
