"""Fills a step's inputs on the host: everything a step reads, in one block that is copied to the device at once.

Each sampled row gets the sampling parameters of its request, as in the CPU's sampler. A row that follows the step
before names the place of its token among that step's results, so the host need not have read it."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.cuda.step_shape import Place, StepShape, input_places
from engine.model.rows import RowLimits, Rows
from engine.step.following import followed
from engine.step.plan import Piece
from engine.step.sampling import sampled_rows

Words = NDArray[np.int32]


def fill(
    words: Words, shape: StepShape, pieces: Sequence[Piece], limits: RowLimits, *, last: Mapping[int, int]
) -> None:
    """Writes the inputs of `pieces`, which are in the step's order. `last` has the place of each request's only token
    among those that the step before sampled, by key."""
    places, _ = input_places(shape, limits.vocab)
    arrays = {name: view(words, place) for name, place in places.items()}
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
            arrays["follows"][row] = followed(piece, last)
    for name in ("starts", "counts", "first_row"):
        arrays[name][:sequences] = getattr(rows, name)
    (tables,) = rows.tables  # a GPU computes no windows, so all layers lie in the same pages
    used = min(shape.width, tables.shape[1])
    arrays["tables"][:sequences, :used] = tables[:, :used]
    arrays["sampled"][:sampled] = rows.sampled
    _fill_sampling(arrays, pieces, shape, limits.vocab)


def view(words: Words, place: Place) -> NDArray[np.generic]:
    """One array of the block, in its own type."""
    return words[place.first : place.stop].view(place.dtype).reshape(place.shape)


def _fill_sampling(
    arrays: Mapping[str, NDArray[np.generic]], pieces: Sequence[Piece], shape: StepShape, vocab: int
) -> None:
    rows = sampled_rows(pieces)
    if any(one.reads_logits for one, _ in rows):
        what = "a request adjusts its logits, looks them up or lists many"
        raise ValueError(f"{what}, which a GPU does not do; the gateway must not send it here")
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
    for name in ("temperature", "top_p", "min_p"):
        arrays[name][:count] = [getattr(one, name) for one, _ in rows]
    if shape.masked:
        allowed = arrays["allowed"].view(np.uint32)
        allowed[...] = 0xFFFFFFFF
        for row, (one, position) in enumerate(rows):
            for token in one.stop_ids if position < one.min_tokens else ():
                if 0 <= token < vocab:
                    allowed[row, token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
