"""From the logits of a step's sampled rows to tokens: every piece's wishes as arrays, one kernel call for the batch.

Row i of a piece yields the emitted token with index `piece.position + i`; noise is keyed by (seed, choice, position,
token id) and nothing else, so a request samples the same tokens in any batch and after any fail-over. Stop ids are
masked while fewer than `min_tokens` tokens were emitted."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from baton_kernels import Drawn
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
    drawn = Wishes(rows, vocab).draw(logits, tops=np.array(tops, np.int32) if any(tops) else None)
    if not any(tops):
        entries = map(Sampled, drawn.tokens.tolist(), drawn.logprobs.tolist())
    else:
        entries = map(_entry, *(array.tolist() for array in drawn), tops)
    return tuple(tuple(islice(entries, piece.sampled)) for piece in pieces)


def _entry(token: int, logprob: float, ids: list[int], logprobs: list[float], top: int) -> Sampled:
    return Sampled(token, logprob, tuple(ids[:top]), tuple(logprobs[:top]))


class Wishes:
    """How each row is sampled, one entry per row."""

    def __init__(self, rows: Sequence[tuple[Sampling, int]], vocab: int) -> None:
        """Each with the position that it yields."""
        self._rows, self._vocab = [one for one, _ in rows], vocab
        self._position = np.array([position for _, position in rows], np.int32)
        self._most_min_tokens = max((one.min_tokens for one in self._rows), default=0)
        self._sampler = baton_kernels.Sampler(
            temperature=np.array([one.temperature for one in self._rows], np.float32),
            top_k=np.array([min(one.top_k, vocab) for one in self._rows], np.int32),
            top_p=np.array([one.top_p for one in self._rows], np.float32),
            min_p=np.array([one.min_p for one in self._rows], np.float32),
            seed=np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one in self._rows], np.uint64),
            choice=np.array([one.choice for one in self._rows], np.int32),
            position=self._position,
        )

    def draw(self, logits: Floats, *, tops: Ints | None = None) -> Drawn:
        """For the first rows, as many as there are logits; `tops` says how many of the best logprobs each wants."""
        banned, starts = self._banned(len(logits))
        return self._sampler.draw(logits, banned=banned, banned_starts=starts, n_top=tops)

    def advance(self) -> None:
        """Every row's next position."""
        self._position += 1

    def _banned(self, rows: int) -> tuple[Ints, Ints] | tuple[None, None]:
        """Ids that must not be sampled, row after row, and where each row's begin. Ids beyond the vocabulary never
        come."""
        if self._most_min_tokens == 0:
            return None, None
        ids: list[int] = []
        starts = [0]
        for one, position in zip(self._rows[:rows], self._position[:rows].tolist(), strict=True):
            if position < one.min_tokens:
                ids.extend(token for token in one.stop_ids if 0 <= token < self._vocab)
            starts.append(len(ids))
        return np.array(ids, np.int32), np.array(starts, np.int32)


def sampled_rows(pieces: Sequence[Piece]) -> list[tuple[Sampling, int]]:
    """Each sampled row's wishes and the position that it yields."""
    return [(one, piece.position + i) for piece in pieces if (one := piece.sampling) for i in range(piece.sampled)]
