"""From the logits of a step's sampled rows to tokens: every piece's wishes as arrays, one kernel call for the batch.

Row i of a piece yields the emitted token with index `piece.position + i`; noise is keyed by (seed, choice, position,
token id) and nothing else, so a request samples the same tokens in any batch and after any fail-over. Stop ids are
masked while fewer than `min_tokens` tokens were emitted."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    wishes = Wishes.of(pieces, logits.shape[1])
    if len(wishes.position) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(wishes.position)} sampled rows")
    if len(logits) == 0:
        return tuple(() for _ in pieces)
    tokens, logprobs, top_ids, top_logprobs = wishes.draw(logits, tops=wishes.tops)
    entries = (
        Sampled(token, logprob, tuple(ids[:top]), tuple(values[:top]))
        for token, logprob, ids, values, top in zip(
            tokens.tolist(),
            logprobs.tolist(),
            top_ids.tolist(),
            top_logprobs.tolist(),
            wishes.tops.tolist(),
            strict=True,
        )
    )
    return tuple(tuple(islice(entries, piece.sampled)) for piece in pieces)


@dataclass(frozen=True, slots=True)
class Wishes:
    """How each row is sampled, one entry per row."""

    rows: tuple[Sampling, ...]
    vocab: int
    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    seed: NDArray[np.uint64]
    choice: Ints
    position: Ints
    min_tokens: Ints
    tops: Ints  # how many of the best logprobs are wanted

    @classmethod
    def of(cls, pieces: Sequence[Piece], vocab: int) -> "Wishes":
        rows = [(one, piece.position + i) for piece in pieces if (one := piece.sampling) for i in range(piece.sampled)]
        return cls(
            rows=tuple(one for one, _ in rows),
            vocab=vocab,
            temperature=np.array([one.temperature for one, _ in rows], np.float32),
            top_k=np.array([min(one.top_k, vocab) for one, _ in rows], np.int32),
            top_p=np.array([one.top_p for one, _ in rows], np.float32),
            min_p=np.array([one.min_p for one, _ in rows], np.float32),
            seed=np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one, _ in rows], np.uint64),
            choice=np.array([one.choice for one, _ in rows], np.int32),
            position=np.array([position for _, position in rows], np.int32),
            min_tokens=np.array([one.min_tokens for one, _ in rows], np.int32),
            tops=np.array([min(one.top_logprobs or 0, vocab) for one, _ in rows], np.int32),
        )

    def behind(self, count: int) -> "Wishes":
        """The first rows' wishes for the position after."""
        return Wishes(
            rows=self.rows[:count],
            vocab=self.vocab,
            temperature=self.temperature[:count],
            top_k=self.top_k[:count],
            top_p=self.top_p[:count],
            min_p=self.min_p[:count],
            seed=self.seed[:count],
            choice=self.choice[:count],
            position=self.position[:count] + np.int32(1),
            min_tokens=self.min_tokens[:count],
            tops=self.tops[:count],
        )

    def draw(self, logits: Floats, *, tops: Ints | None = None) -> Drawn:
        banned, starts = self._banned()
        return baton_kernels.sample(
            logits,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            choice=self.choice,
            position=self.position,
            banned=banned,
            banned_starts=starts,
            n_top=tops,
        )

    def _banned(self) -> tuple[Ints, Ints] | tuple[None, None]:
        """Ids that must not be sampled, row after row, and where each row's begin. Ids beyond the vocabulary never
        come."""
        if (self.position >= self.min_tokens).all():
            return None, None
        ids: list[int] = []
        starts = [0]
        for one, position in zip(self.rows, self.position.tolist(), strict=True):
            if position < one.min_tokens:
                ids.extend(token for token in one.stop_ids if 0 <= token < self.vocab)
            starts.append(len(ids))
        return np.array(ids, np.int32), np.array(starts, np.int32)
