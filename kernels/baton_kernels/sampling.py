"""Logits to tokens, for a whole batch in one call.

Greedy (temperature 0) takes the largest logit, ties to the lowest id. Otherwise the sampler takes the largest sum of
logit and Gumbel noise among the tokens that top-k, then top-p, then min-p keep. The noise is keyed by (seed, choice,
position, token id): equal keys give equal tokens in any batch, anywhere. A row can be drawn from an
adjusted copy of its logits. Logprobs are of the raw distribution: before adjustments, bans, temperature and filters."""

from typing import NamedTuple

import numpy as np

from baton_kernels.arrays import F32, I32, U64, Array, pointer, rank
from baton_kernels.library import KernelError, check, load


class Drawn(NamedTuple):
    tokens: Array  # int32 [rows]
    logprobs: Array  # float32 [rows]
    top_ids: Array  # int32 [rows, largest n_top], -1 beyond a row's own n_top
    top_logprobs: Array  # float32, -inf beyond
    totals: Array  # float32 [rows], what a logit of the row loses to become a logprob, in one subtraction


def sample(
    logits: Array,  # float32 [rows, vocab]
    temperature: Array,  # float32 [rows], 0 is greedy
    top_k: Array,  # int32 [rows], 0 is off
    top_p: Array,  # float32 [rows], 1 is off
    min_p: Array,  # float32 [rows], 0 is off
    seed: Array,  # uint64 [rows]
    choice: Array,  # int32 [rows]
    position: Array,  # int32 [rows]
    *,
    banned: Array | None = None,  # int32, banned ids of all rows one after the other
    banned_starts: Array | None = None,  # int32 [rows + 1], index in `banned` where each row's ids begin
    n_top: Array | None = None,  # int32 [rows], how many top logprobs each row wants
    adjusted: Array | None = None,  # float32 [adjusted rows, vocab], logits that a row is drawn from instead of its own
    adjusted_rows: Array | None = None,  # int32 [rows], each row's index in `adjusted`, -1 for a row without
) -> Drawn:
    rows, vocab = rank("logits", logits, 2)
    if vocab < 1:
        raise KernelError("logits: the vocabulary is empty")
    if (banned is None) != (banned_starts is None):
        raise KernelError("banned, banned_starts: give both or neither")
    if (adjusted is None) != (adjusted_rows is None):
        raise KernelError("adjusted, adjusted_rows: give both or neither")
    extra = 0 if adjusted is None else len(adjusted)
    most = 0 if n_top is None or rows == 0 else min(max(int(n_top.max()), 0), vocab)
    tops = np.empty((rows, most), I32), np.empty((rows, most), F32)
    drawn = Drawn(np.empty(rows, I32), np.empty(rows, F32), *tops, np.empty(rows, F32))
    one = (rows,)
    check(
        load().sample_adjusted(
            pointer("logits", logits, F32, (rows, vocab)),
            rows,
            vocab,
            pointer("temperature", temperature, F32, one),
            pointer("top_k", top_k, I32, one),
            pointer("top_p", top_p, F32, one),
            pointer("min_p", min_p, F32, one),
            pointer("seed", seed, U64, one),
            pointer("choice", choice, I32, one),
            pointer("position", position, I32, one),
            None if banned is None else pointer("banned", banned, I32, (banned.size,)),
            None if banned_starts is None else pointer("banned_starts", banned_starts, I32, (rows + 1,)),
            0 if banned is None else banned.size,
            None if n_top is None else pointer("n_top", n_top, I32, one),
            most,
            drawn.tokens.ctypes.data,
            drawn.logprobs.ctypes.data,
            drawn.top_ids.ctypes.data,
            drawn.top_logprobs.ctypes.data,
            None if adjusted is None else pointer("adjusted", adjusted, F32, (extra, vocab)),
            None if adjusted_rows is None else pointer("adjusted_rows", adjusted_rows, I32, one),
            extra,
            drawn.totals.ctypes.data,
        )
    )
    return drawn
