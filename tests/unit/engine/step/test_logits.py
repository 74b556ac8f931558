"""Adjusted logits: each rule against a plain recomputation, drafts and resumptions, and what untouched batches cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from engine.step import logits as logits_module
from engine.step.logit_rules import TokenCounts
from engine.step.logits import LogitAdjuster
from engine.step.plan import Piece
from engine.step.sampling import banned_stops, sample, sampled_rows, sampling_arrays
from mesh.messages.jobs import Adjustments, Sampling, TokenBias, TokenSequence

VOCAB = 40


def bits(allowed: Iterable[int]) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(VOCAB // 8, "little")


WORDS = (TokenSequence((3,)), TokenSequence((5, 6)), TokenSequence((5, 6, 7)), TokenSequence((9, 9)))
EVERYTHING = Adjustments(
    biases=(TokenBias(1, 2.5), TokenBias(4, -100.0)),
    repetition_penalty=1.3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    allowed=bits(range(1, 38)),
    suppressed_ids=(8, 2),
    bad_words=WORDS,
    no_repeat_ngram=2,
)

Floats = Any


def draw(seed: int, rows: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def piece(text: Sequence[int], prompt: int, sampling: Sampling, drafts: Sequence[int] = (), key: int = 1) -> Piece:
    """The rows behind this text: those of its last token and of the drafts."""
    tokens = (text[-1], *drafts)
    return Piece(key, tokens, len(text) - 1, (0,), len(tokens), len(text) - prompt, sampling, text=text)


def expected(row: Floats, text: Sequence[int], prompt: int, sampling: Sampling) -> Floats:
    """The adjusted row, from the whole text at once."""
    wanted, row = sampling.adjustments or Adjustments(), row.copy()
    for token, bias in ((each.token, each.bias) for each in wanted.biases):
        row[token] += np.float32(bias)
    penalty = np.float32(wanted.repetition_penalty)
    for token in set(text):
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    emitted = text[prompt:]
    for token, count in Counter(emitted).items():
        row[token] -= np.float32(wanted.frequency_penalty) * np.float32(count) + np.float32(wanted.presence_penalty)
    for token in range(VOCAB):
        stops = sampling.stop_ids if len(emitted) < sampling.min_tokens else ()
        if (
            token in wanted.suppressed_ids
            or (wanted.allowed and not wanted.allowed[token // 8] >> token % 8 & 1)
            or token in stops
        ):
            row[token] = -np.inf
    banned = row.copy()
    for word in wanted.bad_words:
        *before, last = word.tokens
        if not before or list(emitted[-len(before) :]) == before:
            banned[last] = -np.inf
    if size := wanted.no_repeat_ngram:
        for first in range(len(text) - size + 1):
            if list(text[first : first + size - 1]) == list(text[len(text) - size + 1 :]):
                banned[text[first + size - 1]] = -np.inf
    return banned if banned.max() > -np.inf else row


def each_alone() -> list[Adjustments]:
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty", "allowed", "suppressed_ids")
    single = [Adjustments(**{name: getattr(EVERYTHING, name)}) for name in (*names, "bad_words", "no_repeat_ngram")]
    return [Adjustments(biases=EVERYTHING.biases), *single, Adjustments(no_repeat_ngram=1), EVERYTHING]


@pytest.mark.parametrize("adjustments", each_alone(), ids=str)
def test_every_rule_equals_its_recomputation_from_the_whole_text(adjustments: Adjustments) -> None:
    sampling = Sampling(adjustments=adjustments, min_tokens=20, stop_ids=(11, 12, 99))
    random, kept = np.random.default_rng(5), LogitAdjuster()
    text = [int(token) for token in random.integers(0, 12, 9)]
    for step in range(40):
        drafts = [int(token) for token in random.integers(0, 12, step % 4)]
        rows = draw(step, 1 + len(drafts))
        behind = piece(text, 9, sampling, drafts)
        banned = banned_stops(sampling_arrays(sampled_rows([behind]), VOCAB))
        found = kept.adjust([behind], rows, banned)
        again = LogitAdjuster().adjust([replace(behind, text=tuple(text))], rows, banned)  # as after a fail-over
        assert found is not None and again is not None
        for row, copy, fresh in zip(range(len(rows)), found[0], again[0], strict=True):
            right = expected(rows[row], [*text, *drafts[:row]], 9, sampling)
            assert copy.tobytes() == right.tobytes() == fresh.tobytes()
        text.extend(drafts[: step % 3])  # some drafts are accepted, and one token more
        text.append(int(random.integers(0, 12)))


def test_repetition_penalty_and_ngrams_are_those_of_transformers() -> None:
    sampling = Sampling(adjustments=Adjustments(repetition_penalty=1.2, no_repeat_ngram=3))
    bans = 0
    for seed in range(6):
        text = [int(token) for token in np.random.default_rng(seed).integers(0, 3, 30)]
        rows = draw(seed, 1)
        found = LogitAdjuster().adjust([piece(text, 12, sampling)], rows)
        ids, scores = torch.tensor([text]), torch.tensor(rows)
        oracle = NoRepeatNGramLogitsProcessor(3)(ids, RepetitionPenaltyLogitsProcessor(1.2)(ids, scores))
        assert found is not None
        assert np.allclose(found[0], oracle.numpy(), rtol=1e-6)
        bans += int(np.isneginf(found[0]).sum())
    assert bans > 6


def test_bans_that_would_leave_no_token_give_way() -> None:
    wanted = Adjustments(allowed=bits([5, 6]), bad_words=(TokenSequence((7, 5)), TokenSequence((7, 6))))
    sampling = Sampling(adjustments=wanted)
    for last, allowed in ((7, {5, 6}), (8, {5, 6})):
        tokens = {sample([piece((1, last), 1, sampling)], draw(seed, 1))[0][0].token for seed in range(40)}
        assert tokens == allowed


def test_ids_that_are_banned_for_other_reasons_stay_banned_where_the_rules_allow_nothing_else() -> None:
    only = Adjustments(allowed=bits([5]), biases=(TokenBias(6, 100.0),))
    for min_tokens, expected_tokens in ((0, {5}), (9, set(range(VOCAB)) - {5, 6})):
        sampling = Sampling(min_tokens=min_tokens, stop_ids=(5, 6), adjustments=only)
        tokens = {sample([piece((1, 2), 1, sampling)], draw(seed, 1))[0][0].token for seed in range(40)}
        assert tokens <= expected_tokens


def test_a_step_reads_only_what_it_adds_to_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = list[int]()
    push = TokenCounts.push
    monkeypatch.setattr(TokenCounts, "push", lambda self, token: (pushed.append(token), push(self, token))[1])
    sampling, kept = Sampling(adjustments=Adjustments(repetition_penalty=1.1)), LogitAdjuster()
    text = [*range(30)]
    kept.adjust([piece(text, 30, sampling)], draw(1, 1))
    assert pushed == text
    for token in (31, 32):
        text.append(token)
        kept.adjust([piece(text, 30, sampling, [33])], draw(1, 2))
    assert pushed[30:] == [31, 33, 32, 33]
    pushed.clear()
    kept.adjust([piece(list(text), 30, sampling)], draw(1, 1))  # another request with the same key
    assert pushed == text


def test_a_batch_without_adjustments_copies_nothing_and_makes_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Piece]()
    follow = logits_module.FollowedText

    def count(piece: Piece) -> Any:
        made.append(piece)
        return follow(piece)

    monkeypatch.setattr(logits_module, "FollowedText", count)
    plain, adjusted = Sampling(temperature=0.7, seed=3), Sampling(adjustments=EVERYTHING)
    rows = draw(2, 3)
    batch = [piece((1, 2), 1, plain, key=key) for key in range(3)]
    assert LogitAdjuster().adjust(batch, rows) is None and made == []
    found = LogitAdjuster().adjust([*batch[:2], piece((1, 2), 1, adjusted)], rows)
    assert found is not None and len(made) == 1
    assert found[0].shape == (1, VOCAB) and found[1].tolist() == [-1, -1, 0]  # only its row is copied
    assert rows.tobytes() == draw(2, 3).tobytes()


def test_neighbours_change_nothing_and_logprobs_are_the_models() -> None:
    sampling = Sampling(temperature=0.9, seed=11, top_logprobs=3, adjustments=EVERYTHING)
    plain = Sampling(temperature=0.9, seed=4)
    row, other = draw(6, 1), draw(7, 1)
    alone = sample([piece((1, 2, 3), 2, sampling)], row)[0]
    both = sample([piece((4, 5), 1, plain, key=2), piece((1, 2, 3), 2, sampling)], np.concatenate([other, row]))
    assert both[1] == alone and both[0] == sample([piece((4, 5), 1, plain)], other)[0]
    forced = Sampling(top_logprobs=3, adjustments=Adjustments(allowed=bits([17])))
    free = Sampling(top_logprobs=3)
    (got,), (raw,) = sample([piece((1,), 1, forced)], row)[0], sample([piece((1,), 1, free)], row)[0]
    exact = row[0].astype(np.float64) - np.log(np.exp(row[0].astype(np.float64)).sum())
    assert got.token == 17 and got.logprob == pytest.approx(exact[17], abs=1e-5)
    assert (got.top_ids, got.top_logprobs) == (raw.top_ids, raw.top_logprobs)


def test_a_piece_without_its_text_is_refused() -> None:
    bare = Piece(1, (0,), 0, (0,), 1, 0, Sampling(adjustments=EVERYTHING))
    with pytest.raises(ValueError, match="not the text"):
        LogitAdjuster().adjust([bare], draw(1, 1))
