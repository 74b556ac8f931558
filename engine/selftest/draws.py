"""The cases that the self-test draws tokens in: few likely tokens, so placed that any error of a sampler draws another.

Noise depends on the token's id and not on the vocabulary. So a case with the same likely ids draws the same token in
every vocabulary, and `tests/unit/engine/selftest/test_sampler_mutants.py` proves for all of them what it proves for
some. The last ids of a vocabulary have cases in which the noise does not decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from engine.selftest.inputs import Array, spread
from mesh.messages.jobs import Adjustments, Sampling, TokenBias, TokenSequence

SEEDS = 8  # draws of each case, so that the noise favours each likely token in some of them
TEXT = (3, 9, 14, 3, 20, 9, 3, 9, 5, 3, 9, 5)  # prompt and emitted tokens of the cases whose logits are adjusted
EMITTED = 4  # how many of them are emitted
_NONE = -200.0  # logit of a token without any probability
_HUGE = 1e9  # noise is too small to change such a logit
_LIKELY = (5, 9, 14, 20, 27)
_EQUAL = dict.fromkeys(_LIKELY, 0.0)
_FALLING = dict(zip(_LIKELY, (2.0, 1.0, 0.5, 0.0, -1.0), strict=True))
_LAST_WINS = {5: 0.0, 9: 1.0, -1: 30.0}  # ids below 0 count from the end
_FIRST_WINS = {0: 30.0, 9: 1.0, -1: 0.0}


@dataclass(frozen=True, slots=True)
class DrawnCase:
    logits: dict[int, float]  # logits of the likely tokens, by id
    sampling: Sampling
    position: int = EMITTED
    rest: float = _NONE  # logit of all other tokens
    drafts: tuple[int, ...] = ()  # that the step verifies: it draws one token more than these
    masked: tuple[int, ...] = ()  # ids that a grammar forbids in the first row

    def row(self, vocab: int) -> Array:
        row = np.full(vocab, self.rest, np.float32)
        for token, logit in self.logits.items():
            if -vocab <= token < vocab:
                row[token] = logit
        return row


def _seeds(case: DrawnCase, count: int) -> Iterator[DrawnCase]:
    for seed in range(count):
        yield replace(case, sampling=replace(case.sampling, seed=seed * 0x9E3779B97F4A7C15 % 2**64, choice=seed % 3))


_WARM = Sampling(temperature=1.0, top_logprobs=3)
_FILTERED = (
    DrawnCase(_EQUAL, replace(_WARM, top_k=2)),  # the two lowest ids
    DrawnCase(_EQUAL, replace(_WARM, top_p=0.4)),  # two of five, and not one more
    DrawnCase(_EQUAL, replace(_WARM, top_p=0.39)),
    DrawnCase(_EQUAL, replace(_WARM, top_k=2, top_p=0.5)),  # half of what top-k leaves
    DrawnCase(_EQUAL, replace(_WARM, min_p=1.0)),  # all five
    DrawnCase(_EQUAL, replace(_WARM, min_p=0.3)),
    DrawnCase(_EQUAL, replace(_WARM, top_k=3, min_p=0.3)),
    DrawnCase(_FALLING, replace(_WARM, min_p=0.3)),
    DrawnCase(_FALLING, replace(_WARM, top_k=3)),
    DrawnCase({5: 0.0, 9: -1.0}, replace(_WARM, temperature=0.5, top_p=0.8)),  # temperature first, then the filter
    DrawnCase({5: 0.0, 9: -1.0}, replace(_WARM, temperature=0.5, min_p=0.3)),
    DrawnCase(_FALLING, replace(_WARM, temperature=0.7, top_k=4, top_p=0.9, min_p=0.05)),
    DrawnCase({5: 0.0, 9: 0.0}, replace(_WARM, top_k=1)),
)
_NOISY = (
    DrawnCase(_EQUAL, _WARM),
    DrawnCase(_FALLING, replace(_WARM, temperature=4.0)),
    DrawnCase(_FALLING, replace(_WARM, temperature=0.25)),
    DrawnCase({}, _WARM, rest=0.0),
    DrawnCase({}, _WARM, rest=0.0, position=0),
    DrawnCase({}, replace(_WARM, top_p=0.999), rest=0.0),
)
_CERTAIN = (
    *(DrawnCase(logits, sampling) for logits in (_LAST_WINS, _FIRST_WINS, {-1: 30.0, -2: 30.0, -17: 30.0})
      for sampling in (Sampling(top_logprobs=2), _WARM, replace(_WARM, top_k=1), replace(_WARM, top_k=2, top_p=0.9))),
    DrawnCase({9: 1.0, 20: 1.0, 27: 1.0, -1: 1.0}, Sampling(top_logprobs=3)),  # greedy ties
    *(DrawnCase({9: _HUGE, 14: _HUGE, 27: _HUGE}, replace(_WARM, top_k=k)) for k in (0, 3)),  # ties in spite of noise
    DrawnCase({9: -0.0, 14: 0.0, 20: -0.0, 27: 0.0}, replace(_WARM, top_k=2), rest=-1.0),  # zeros are equal
    DrawnCase({9: 300.0, 14: 400.0}, Sampling(temperature=1e-37, top_k=2)),  # 400 / 1e-37 is infinite
)  # fmt: skip
_NAMED = (DrawnCase(_FALLING, replace(_WARM, top_logprobs=0, logprob_ids=(27, 3, 5))),)
_STOPS = Sampling(stop_ids=(5, 9, 14), min_tokens=EMITTED + 1, top_logprobs=3)
_BANNED = (
    DrawnCase(_FALLING, _STOPS),
    DrawnCase(_FALLING, replace(_STOPS, min_tokens=EMITTED)),
    DrawnCase(_FALLING, replace(_STOPS, stop_ids=(9,), temperature=1.0, top_k=2)),
    DrawnCase(_FALLING, replace(_STOPS, stop_ids=(5,), temperature=0.3)),
    DrawnCase(_FALLING, replace(_STOPS, temperature=0.0, min_tokens=EMITTED + 2), drafts=(9, 9)),
    DrawnCase(_FALLING, Sampling(), masked=(5, 9)),
    DrawnCase(_FALLING, replace(_STOPS, stop_ids=(5,)), masked=(9, 14)),
)
_ALLOWED = np.packbits(np.arange(24) % 9 != 0, bitorder="little").tobytes()
_CHANGES = (
    Adjustments((TokenBias(9, 1.5), TokenBias(27, 2.25))),
    Adjustments(repetition_penalty=1.7),
    Adjustments(frequency_penalty=0.6),
    Adjustments(presence_penalty=0.9),
    Adjustments((TokenBias(9, 1.5),), repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1),
    Adjustments(allowed=_ALLOWED, suppressed_ids=(5,)),
    Adjustments(bad_words=(TokenSequence((9, 5, 14)), TokenSequence((5,)), TokenSequence((14, 3)))),
    Adjustments(no_repeat_ngram=3),
)
_ADJUSTED = tuple(
    DrawnCase(_FALLING | {3: 1.75, 27: logit}, replace(sampling, adjustments=changes), rest=-4.0, drafts=drafts)
    for changes in _CHANGES
    for logit, sampling, drafts in ((-1.0, Sampling(), (9, 5)), (1.5, replace(_WARM, top_k=3), ()))
)


@cache
def cases() -> tuple[DrawnCase, ...]:
    """Every rule of a sampler, at its boundaries."""
    repeated = [each for case in (*_FILTERED, *_NOISY) for each in _seeds(case, SEEDS)]
    return (*repeated, *_CERTAIN, *_NAMED, *_BANNED, *_ADJUSTED)


@cache
def few_cases() -> tuple[DrawnCase, ...]:
    """One row for each way through the sampler, for vocabularies over which each row takes long."""
    mixed = [replace(case, sampling=replace(case.sampling, seed=7 + at)) for at, case in enumerate(_NOISY[3:])]
    last = [case for case in _CERTAIN[:4] if case.sampling.top_k != 1]
    return (*mixed, *last, _FILTERED[0], _CERTAIN[-5], *_NAMED, _ADJUSTED[8])


def row_of(case: DrawnCase, vocab: int, index: int) -> Sequence[Array]:
    """The logits of a case, one row for each token that it draws; rows behind drafts are shifted by some numbers."""
    first = case.row(vocab)
    return [first, *(first + spread(30 + index % 7 + at, vocab) for at in range(1, len(case.drafts) + 1))]
