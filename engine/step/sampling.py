"""From the logits of a step's sampled rows to tokens, with one kernel call for the whole batch.

Row i of a piece yields the emitted token with index `piece.position + i`. The noise depends on (seed, choice, position,
token id) and on nothing else, so a request samples the same tokens in any batch and after any fail-over. Stop ids are
masked while fewer than `min_tokens` tokens were emitted. Rows whose request adjusts its logits are drawn from adjusted
copies (`engine/step/logits.py`); logprobs are always those of the model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from baton_kernels import Drawn
from baton_kernels.draft import SamplingArrays
from engine.step.logits import Banned, LogitAdjuster
from engine.step.masks import add_bans, is_late, taken
from engine.step.plan import Piece, Sampled
from mesh.messages.jobs import FEW_LISTED, Sampling

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
COLDEST = 1e-30  # lowest temperature above 0: logits divided by less would not be finite


def sample(
    pieces: Sequence[Piece], logits: Floats, adjuster: LogitAdjuster | None = None
) -> tuple[tuple[Sampled, ...], ...]:
    """The sampled tokens of each piece, in order; `logits` is [sampled rows, vocab]. An adjuster that is kept from step
    to step need not read the text of its requests again."""
    rows, vocab = sampled_rows(pieces), logits.shape[1]
    if len(rows) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} sampled rows")
    if not rows:
        return tuple(() for _ in pieces)
    alone = [_listed_alone(params) for params, _ in rows]
    tops = [
        0 if apart else min(params.top_logprobs or 0, vocab) for (params, _), apart in zip(rows, alone, strict=True)
    ]
    arrays = sampling_arrays(rows, vocab)
    banned, masks = banned_stops(arrays), taken(pieces)
    if any(masks):
        banned = add_bans(banned or (None, None), pieces, masks)
    adjusted = (adjuster or LogitAdjuster()).adjust(pieces, logits, banned)
    counts = np.array(tops, np.int32) if any(tops) else None
    drawn = draw(logits, arrays, banned, tops=counts, adjusted=adjusted)
    if not any(tops):
        entries: Iterable[Sampled] = map(Sampled, drawn.tokens.tolist(), drawn.logprobs.tolist())
    else:
        lists = (drawn.tokens, drawn.logprobs, drawn.top_ids, drawn.top_logprobs)
        entries = map(_entry, *(array.tolist() for array in lists), tops)
    if any(alone):
        entries = _with_wanted(entries, rows, logits, drawn.totals)
    drawn_of = [tuple(islice(entries, piece.sampled)) for piece in pieces]
    return tuple(
        () if is_late(piece, mask) else found for piece, mask, found in zip(pieces, masks, drawn_of, strict=True)
    )


def _with_wanted(
    entries: Iterable[Sampled], rows: Sequence[tuple[Sampling, int]], logits: Floats, totals: Floats
) -> Iterator[Sampled]:
    """The sampled tokens, with what is listed for a row alone."""
    for entry, (params, _), row, total in zip(entries, rows, logits, totals, strict=True):
        if not _listed_alone(params):
            yield entry
        elif params.logprob_ids:
            found = logprobs_of(row[np.array(params.logprob_ids)], total)
            yield replace(entry, top_ids=params.logprob_ids, top_logprobs=tuple(found.tolist()))
        else:
            ids, found = _likeliest(row, min(params.top_logprobs or 0, len(row)))
            yield replace(entry, top_ids=tuple(ids.tolist()), top_logprobs=tuple(found.tolist()))


def _listed_alone(params: Sampling) -> bool:
    """Whether a row of the request lists its own tokens, or so many that lists of this length for all rows of the batch
    would cost the others more than their tokens."""
    return bool(params.logprob_ids) or (params.top_logprobs or 0) > FEW_LISTED


def _likeliest(row: Floats, count: int) -> tuple[Ints, Floats]:
    """The likeliest tokens of one row with their logprobs."""
    drawn = draw(row[None], sampling_arrays([(Sampling(), 0)], len(row)), None, tops=np.array([count], np.int32))
    return drawn.top_ids[0], drawn.top_logprobs[0]


def logprobs_of(logits: Floats, totals: Floats) -> Floats:
    """The logprobs of tokens with these logits, given the totals of their rows. The kernel's lists subtract in the same
    way, so the bits are those of a list. A logit of -inf is its own logprob, even in a row whose total is NaN."""
    return np.where(logits == -np.inf, logits, logits - totals)


def _entry(token: int, logprob: float, ids: list[int], logprobs: list[float], top: int) -> Sampled:
    return Sampled(token, logprob, tuple(ids[:top]), tuple(logprobs[:top]))


def sampling_arrays(rows: Sequence[tuple[Sampling, int]], vocab: int) -> SamplingArrays:
    """The sampling parameters of each row and the position that it yields. Stop ids outside the vocabulary are dropped,
    since the model cannot sample them."""
    stops = [
        [token for token in params.stop_ids if 0 <= token < vocab] if params.min_tokens else [] for params, _ in rows
    ]
    starts = [0, *accumulate(map(len, stops))]
    return SamplingArrays(
        temperature=np.array([params.temperature for params, _ in rows], np.float32),
        top_k=np.array([min(params.top_k, vocab) for params, _ in rows], np.int32),
        top_p=np.array([params.top_p for params, _ in rows], np.float32),
        min_p=np.array([params.min_p for params, _ in rows], np.float32),
        seed=np.array([params.seed & 0xFFFFFFFFFFFFFFFF for params, _ in rows], np.uint64),
        choice=np.array([params.choice for params, _ in rows], np.int32),
        position=np.array([position for _, position in rows], np.int32),
        min_tokens=np.array([params.min_tokens for params, _ in rows], np.int32),
        stops=np.array(list(chain.from_iterable(stops)), np.int32),
        stop_starts=np.array(starts, np.int32),
    )


def draw(
    logits: Floats,
    sampling: SamplingArrays,
    banned: Banned | None,
    *,
    tops: Ints | None = None,
    adjusted: tuple[Floats, Ints] | None = None,
) -> Drawn:
    """Samples one token per row. `tops` is the number of best logprobs that each row wants, `adjusted` what
    `LogitAdjuster.adjust` returns."""
    return baton_kernels.sample(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        choice=sampling.choice,
        position=sampling.position,
        banned=None if banned is None else banned[0],
        banned_starts=None if banned is None else banned[1],
        n_top=tops,
        adjusted=None if adjusted is None else adjusted[0],
        adjusted_rows=None if adjusted is None else adjusted[1],
    )


def banned_stops(sampling: SamplingArrays) -> Banned | None:
    """The stop ids of the rows that may not end yet, row after row, and where those of each row begin."""
    if not sampling.stops.size:
        return None
    lengths = np.diff(sampling.stop_starts)
    early = sampling.position < sampling.min_tokens
    starts = np.concatenate([[0], np.cumsum(lengths * early)]).astype(np.int32)
    return sampling.stops[np.repeat(early, lengths)], starts


def sampled_rows(pieces: Sequence[Piece]) -> list[tuple[Sampling, int]]:
    """The sampling parameters of each sampled row and the position that it yields."""
    sampled = [(piece, _not_too_cold(params)) for piece in pieces if (params := piece.sampling)]
    return [(params, piece.position + i) for piece, params in sampled for i in range(piece.sampled)]


def _not_too_cold(params: Sampling) -> Sampling:
    return replace(params, temperature=COLDEST) if 0 < params.temperature < COLDEST else params
