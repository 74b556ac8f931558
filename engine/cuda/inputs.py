"""Fills a step's inputs on the host: everything a step reads, in one block that is copied to the device at once.

Sampling wishes are spread over the sampled rows as the CPU's sampler spreads them. A row that follows the step before
names the place of its token among that step's, so the host need not have seen it."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from engine.cuda.form import Form, Place, input_places
from engine.model.rows import Limits, Rows
from engine.plan import Piece
from engine.sampling import sampled_rows

Words = NDArray[np.int32]
_WISHED = ("temperature", "top_p", "min_p")
_FLOATS = (*_WISHED, "logprobs", "top_logprobs")


def fill(words: Words, form: Form, pieces: Sequence[Piece], limits: Limits, *, last: Mapping[int, int]) -> None:
    """`pieces` in the step's order; `last` says at which of the step before's tokens each key's one stands."""
    places, _ = input_places(form, limits.vocab)
    arrays = {name: view(words, place, name) for name, place in places.items()}
    rows = Rows.of(pieces, limits)
    count, sequences, sampled = len(rows.tokens), len(rows.starts), len(rows.sampled)
    for name, filler in (("tokens", 0), ("follows", -1), ("slots", -1), ("sequence_of", 0)):
        arrays[name][:] = filler
    for name in ("starts", "counts", "first_row", "sampled", "tables"):
        arrays[name][...] = 0
    arrays["tokens"][:count] = rows.tokens
    arrays["slots"][:count] = rows.slots
    arrays["sequence_of"][:count] = np.repeat(np.arange(sequences, dtype=np.int32), rows.counts)
    for piece, row in zip(pieces, rows.first_row.tolist(), strict=True):
        if piece.follows:
            arrays["follows"][row] = _followed(piece, last)
    for name in ("starts", "counts", "first_row"):
        arrays[name][:sequences] = getattr(rows, name)
    used = min(form.width, rows.tables.shape[1])
    arrays["tables"][:sequences, :used] = rows.tables[:, :used]
    arrays["sampled"][:sampled] = rows.sampled
    _fill_wishes(arrays, pieces, form, limits.vocab)


def view(words: Words, place: Place, name: str) -> NDArray[np.generic]:
    """One array of the block, in its own type."""
    length = place.words * prod(place.shape)
    part = words[place.first : place.first + length]
    if place.words == 2:
        return part.view(np.int64).reshape(place.shape)
    return (part.view(np.float32) if name in _FLOATS else part).reshape(place.shape)


def _followed(piece: Piece, last: Mapping[int, int]) -> int:
    if piece.key not in last:
        raise ValueError(f"piece {piece.key} follows a token, but the step before did not sample exactly one for it")
    return last[piece.key]


def _fill_wishes(arrays: Mapping[str, NDArray[np.generic]], pieces: Sequence[Piece], form: Form, vocab: int) -> None:
    rows = sampled_rows(pieces)
    count = len(rows)
    for name in ("seed", "choice", "position", "top_k", "n_top", "temperature", "min_p"):
        arrays[name][:] = 0
    arrays["top_p"][:] = 1
    if not count:
        return
    arrays["seed"][:count] = np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one, _ in rows], np.uint64).view(np.int64)
    arrays["choice"][:count] = [one.choice for one, _ in rows]
    arrays["position"][:count] = [position for _, position in rows]
    arrays["top_k"][:count] = [min(one.top_k, vocab) for one, _ in rows]
    arrays["n_top"][:count] = [min(one.top_logprobs or 0, vocab) for one, _ in rows]
    for name in _WISHED:
        arrays[name][:count] = [getattr(one, name) for one, _ in rows]
    if form.masked:
        allowed = arrays["allowed"].view(np.uint32)
        allowed[...] = 0xFFFFFFFF
        for row, (one, position) in enumerate(rows):
            for token in one.stop_ids if position < one.min_tokens else ():
                if 0 <= token < vocab:
                    allowed[row, token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
