"""From the logits of a step's sampled rows to tokens: every piece's wishes as arrays, one kernel call for the batch.

Row i of a piece yields the emitted token with index `piece.position + i`; noise is keyed by (seed, choice, position,
token id) and nothing else, so a request samples the same tokens in any batch and after any fail-over. Stop ids are
masked while fewer than `min_tokens` tokens were emitted."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from engine.plan import Piece, Sampled
from mesh.messages import Sampling


def sample(pieces: Sequence[Piece], logits: NDArray[np.float32]) -> tuple[tuple[Sampled, ...], ...]:
    """One tuple per piece, in order; `logits` is [sampled rows, vocab]."""
    wishes = list(_rows(pieces))
    if len(wishes) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(wishes)} sampled rows")
    if not wishes:
        return tuple(() for _ in pieces)
    vocab = logits.shape[1]
    banned, starts = _banned(wishes, vocab)
    tops = np.array([min(one.top_logprobs or 0, vocab) for one, _ in wishes], np.int32)
    tokens, logprobs, top_ids, top_logprobs = baton_kernels.sample(
        logits,
        temperature=np.array([one.temperature for one, _ in wishes], np.float32),
        top_k=np.array([min(one.top_k, vocab) for one, _ in wishes], np.int32),
        top_p=np.array([one.top_p for one, _ in wishes], np.float32),
        min_p=np.array([one.min_p for one, _ in wishes], np.float32),
        seed=np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one, _ in wishes], np.uint64),
        choice=np.array([one.choice for one, _ in wishes], np.int32),
        position=np.array([position for _, position in wishes], np.int32),
        banned=banned,
        banned_starts=starts,
        n_top=tops,
    )
    entries = (
        Sampled(token, logprob, tuple(ids[:top]), tuple(values[:top]))
        for token, logprob, ids, values, top in zip(
            tokens.tolist(), logprobs.tolist(), top_ids.tolist(), top_logprobs.tolist(), tops.tolist(), strict=True
        )
    )
    return tuple(tuple(islice(entries, piece.sampled)) for piece in pieces)


def _rows(pieces: Sequence[Piece]) -> Iterator[tuple[Sampling, int]]:
    """Each sampled row's wishes and the position that it yields."""
    for piece in pieces:
        if piece.sampling is not None:
            for index in range(piece.sampled):
                yield piece.sampling, piece.position + index


def _banned(wishes: Sequence[tuple[Sampling, int]], vocab: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids that must not be sampled, row after row, and where each row's begin. Ids beyond the vocabulary never come."""
    ids: list[int] = []
    starts = [0]
    for one, position in wishes:
        if position < one.min_tokens:
            ids.extend(token for token in one.stop_ids if 0 <= token < vocab)
        starts.append(len(ids))
    return np.array(ids, np.int32), np.array(starts, np.int32)
