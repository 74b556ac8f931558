"""The self-test's part about sampling: every case of `engine/selftest/draws.py`, drawn as a step draws it.

All cases are drawn from the vocabulary, of a large one from its first thousand ids: there a case costs microseconds,
and each has many seeds. The whole of a large vocabulary has a case for each way through the sampler."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from engine.model.weights import Weights
from engine.selftest.draws import TEXT, DrawnCase, cases, few_cases, row_of
from engine.selftest.inputs import Array, spread
from engine.step.logits import LogitAdjuster
from engine.step.piece_masks import Masks, StepMasks
from engine.step.plan import Piece, Sampled
from engine.step.reports import score
from engine.step.sampling import sample

_NARROW = 1003  # ids of a large vocabulary that all cases are drawn from


def sampling(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """Draws with every parameter, ban, mask and adjustment, and the rows of examinations."""
    vocab = weights.config.vocab
    yield from _draw(cases(), min(vocab, _NARROW))
    if vocab > _NARROW:
        yield from _draw(few_cases(), vocab)
    yield from _scores(vocab)


def columns_of(sampled: Sequence[Sampled]) -> Iterator[Array]:
    """All that a step says of its tokens."""
    yield np.array([each.token for each in sampled], np.int32)
    yield np.array([each.logprob for each in sampled], np.float32)
    yield np.array([token for each in sampled for token in each.top_ids], np.int32)
    yield np.array([logprob for each in sampled for logprob in each.top_logprobs], np.float32)


def _draw(chosen: Sequence[DrawnCase], vocab: int) -> Iterator[Array]:
    logits = np.stack([row for index, case in enumerate(chosen) for row in row_of(case, vocab, index)])
    text = tuple(token % vocab for token in TEXT)
    pieces = [_piece(key, case, text) for key, case in enumerate(chosen)]
    adjuster = LogitAdjuster()
    yield from columns_of([each for piece in sample(pieces, logits, adjuster) for each in piece])
    adjusted = adjuster.adjust(pieces, logits)  # once more, with what the adjuster knows of the step before
    if adjusted is not None:
        yield from adjusted


def _piece(key: int, case: DrawnCase, text: tuple[int, ...]) -> Piece:
    tokens = (text[-1], *case.drafts)
    masks = _masks(case) if case.masked else None
    at = len(text) - 1
    return Piece(key, tokens, at, (), len(tokens), case.position, case.sampling, text=text, masks=masks)


def _masks(case: DrawnCase) -> StepMasks:
    result: Future[Masks] = Future()
    result.set_result(Masks((np.array(case.masked, np.int32),)))
    return StepMasks(case.position, case.drafts, result)


def _scores(vocab: int) -> Iterator[Array]:
    """Examined rows: of spread logits, and of equal ones, where the rank is the id's."""
    spread_out = spread(10, 2, vocab) * np.float32(4)
    equal = np.zeros((2, vocab), np.float32)
    for rows in (spread_out, equal):
        following = np.array([min(9, vocab - 1), vocab - 1], np.int32)
        for column in score(rows, following, min(5, vocab)):
            yield np.frombuffer(column, np.uint8)
