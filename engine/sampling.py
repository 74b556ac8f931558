"""From the logits of a step's sampled rows to tokens: every piece's wishes as arrays, one kernel call for the batch.

Row i of a piece yields the emitted token with index `piece.position + i`; noise is keyed by (seed, choice, position,
token id) and nothing else, so a request samples the same tokens in any batch and after any fail-over. Stop ids are
masked while fewer than `min_tokens` tokens were emitted."""

from collections.abc import Sequence
from itertools import accumulate, chain, islice

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from baton_kernels import Drawn
from baton_kernels.draft import SamplingArrays
from engine.plan import Piece, Sampled
from mesh.messages import Sampling

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def sample(pieces: Sequence[Piece], logits: Floats) -> tuple[tuple[Sampled, ...], ...]:
    """One tuple per piece, in order; `logits` is [sampled rows, vocab]."""
    rows, vocab = sampled_rows(pieces), logits.shape[1]
    if len(rows) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} sampled rows")
    if not rows:
        return tuple(() for _ in pieces)
    tops = [min(one.top_logprobs or 0, vocab) for one, _ in rows]
    drawn = draw(logits, wishes(rows, vocab), tops=np.array(tops, np.int32) if any(tops) else None)
    if not any(tops):
        entries = map(Sampled, drawn.tokens.tolist(), drawn.logprobs.tolist())
    else:
        entries = map(_entry, *(array.tolist() for array in drawn), tops)
    return tuple(tuple(islice(entries, piece.sampled)) for piece in pieces)


def _entry(token: int, logprob: float, ids: list[int], logprobs: list[float], top: int) -> Sampled:
    return Sampled(token, logprob, tuple(ids[:top]), tuple(logprobs[:top]))


def wishes(rows: Sequence[tuple[Sampling, int]], vocab: int) -> SamplingArrays:
    """Each row's, with the position that it yields. Stop ids beyond the vocabulary never come."""
    stops = [[token for token in one.stop_ids if 0 <= token < vocab] if one.min_tokens else [] for one, _ in rows]
    starts = [0, *accumulate(map(len, stops))]
    return SamplingArrays(
        temperature=np.array([one.temperature for one, _ in rows], np.float32),
        top_k=np.array([min(one.top_k, vocab) for one, _ in rows], np.int32),
        top_p=np.array([one.top_p for one, _ in rows], np.float32),
        min_p=np.array([one.min_p for one, _ in rows], np.float32),
        seed=np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one, _ in rows], np.uint64),
        choice=np.array([one.choice for one, _ in rows], np.int32),
        position=np.array([position for _, position in rows], np.int32),
        min_tokens=np.array([one.min_tokens for one, _ in rows], np.int32),
        stops=np.array(list(chain.from_iterable(stops)), np.int32),
        stop_starts=np.array(starts, np.int32),
    )


def draw(logits: Floats, wishes: SamplingArrays, *, tops: Ints | None = None) -> Drawn:
    """One token per row; `tops` says how many of the best logprobs each wants."""
    banned, starts = _banned(wishes)
    return baton_kernels.sample(
        logits,
        temperature=wishes.temperature,
        top_k=wishes.top_k,
        top_p=wishes.top_p,
        min_p=wishes.min_p,
        seed=wishes.seed,
        choice=wishes.choice,
        position=wishes.position,
        banned=banned,
        banned_starts=starts,
        n_top=tops,
    )


def _banned(wishes: SamplingArrays) -> tuple[Ints, Ints] | tuple[None, None]:
    """Stop ids of the rows that may not end yet, row after row, and where each row's begin."""
    if not wishes.stops.size:
        return None, None
    lengths = np.diff(wishes.stop_starts)
    early = wishes.position < wishes.min_tokens
    starts = np.concatenate([[0], np.cumsum(lengths * early)]).astype(np.int32)
    return wishes.stops[np.repeat(early, lengths)], starts


def sampled_rows(pieces: Sequence[Piece]) -> list[tuple[Sampling, int]]:
    """Each sampled row's wishes and the position that it yields."""
    return [(one, piece.position + i) for piece in pieces if (one := piece.sampling) for i in range(piece.sampled)]
