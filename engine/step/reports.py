"""Reports on the rows of an examined prompt: logprobs of the tokens that follow them, or a pooled hidden state.

docs/examinations.md has the whole. A logprob has the bits that decode would give the same token: the sampling kernel
gives the total of a row, and the token's logit loses it in the kernel's own subtraction. Logits are made for a slice of
rows at a time, so a long prompt over a large vocabulary needs no more memory than a batch in decode. A mean is a chain
of additions, row after row, so that chunks do not change it."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from engine.step.adapted import AdapterWeights, RowsOfAdapters, rows_of_adapters
from engine.step.logits import LogitAdjuster
from engine.step.plan import Piece, RowsReport, Sampled, WantedRows
from engine.step.sampling import logprobs_of, sample
from mesh.messages.jobs import Pooling

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Logits = Callable[[Floats], Floats]  # final hidden states -> [rows, vocab], valid until the next call
AdaptedLogits = Callable[[Floats, RowsOfAdapters], Floats]  # the same, of rows with adapters

SLICE_BYTES = 8 * 2**20  # logits that exist at once
FLOAT, UNSIGNED = np.dtype("<f4"), np.dtype("<u4")


def outputs(
    pieces: Sequence[Piece], hidden: Floats, logits: AdaptedLogits, vocab: int, adjuster: LogitAdjuster
) -> tuple[tuple[tuple[Sampled, ...], ...], tuple[RowsReport | None, ...]]:
    """The sampled tokens and the report of each piece; `hidden` has the kept rows of all pieces, in order."""
    adapters = adapters_of(pieces)
    if not any(piece.wanted for piece in pieces):
        return sample(pieces, logits(hidden, adapters), adjuster), ()
    parts = np.split(hidden, np.cumsum([piece.kept for piece in pieces])[:-1])
    ends = [part for piece, part in zip(pieces, parts, strict=True) if piece.sampled]
    sampled = sample(pieces, logits(np.concatenate(ends), adapters), adjuster) if ends else tuple(() for _ in pieces)
    reports = tuple(
        None if piece.wanted is None else report(piece.wanted, part, _with(piece.adapter, logits), vocab)
        for piece, part in zip(pieces, parts, strict=True)
    )
    return sampled, reports


def adapters_of(pieces: Sequence[Piece]) -> RowsOfAdapters:
    """The adapters of the sampled rows."""
    return rows_of_adapters((piece.adapter, piece.sampled) for piece in pieces)


def _with(adapter: AdapterWeights | None, logits: AdaptedLogits) -> Logits:
    return lambda hidden: logits(hidden, rows_of_adapters([(adapter, len(hidden))]))


def report(wanted: WantedRows, hidden: Floats, logits: Logits, vocab: int) -> RowsReport:
    """The report on one piece, whose kept rows have these final hidden states."""
    if wanted.pooling is Pooling.LAST:
        return RowsReport(pooled=hidden[-1].astype(FLOAT).tobytes())
    if wanted.pooling is Pooling.MEAN:
        return RowsReport(pooled=add_rows(wanted.before, hidden))
    size = max(1, SLICE_BYTES // (4 * vocab))
    following = np.array(wanted.following, np.int32)
    slices = [
        score(logits(np.ascontiguousarray(hidden[first : first + size])), tokens, wanted.top)
        for first in range(0, len(following), size)
        if len(tokens := following[first : first + size])
    ]
    columns = zip(*slices, strict=True) if slices else ((),) * 4
    return RowsReport(*(b"".join(column) for column in columns))


def score(logits: Floats, following: Ints, top: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Logprob and rank of following[i] in row i, and the `top` likeliest ids with their logprobs. Ties go to the lowest
    id. Rows of logits beyond `following` are ignored."""
    rows, vocab = len(following), logits.shape[1]
    logits = logits[:rows]
    own, ids = logits[np.arange(rows), following][:, None], np.arange(vocab, dtype=np.int32)
    before = ((logits > own) | ((logits == own) & (ids < following[:, None]))).sum(axis=1)
    tops = np.full(rows, min(top, vocab), np.int32)
    zeros = np.zeros(rows, np.int32)
    drawn = baton_kernels.sample(
        logits,
        temperature=zeros.astype(np.float32),
        top_k=zeros,
        top_p=np.ones(rows, np.float32),
        min_p=zeros.astype(np.float32),
        seed=np.zeros(rows, np.uint64),
        choice=zeros,
        position=zeros,
        n_top=tops if top else None,
    )
    return (
        logprobs_of(own[:, 0], drawn.totals).astype(FLOAT).tobytes(),
        (before + 1).astype(UNSIGNED).tobytes(),
        drawn.top_ids.astype(UNSIGNED).tobytes(),
        drawn.top_logprobs.astype(FLOAT).tobytes(),
    )


def add_rows(before: bytes, hidden: Floats) -> bytes:
    """The sum of earlier rows and these, added one after the other, so that chunks do not change a bit."""
    total = np.zeros(hidden.shape[1], np.float32)
    if before:
        total += np.frombuffer(before, FLOAT)
    for row in hidden:
        total += row
    return total.astype(FLOAT).tobytes()


def embedding(pooled: bytes, dimensions: int) -> bytes:
    """The first `dimensions` values (0: all), scaled to length 1. A vector of zeros stays as it is. The squares are
    exact in double precision and are added one after the other. A sum of rows points where their mean points."""
    values = np.frombuffer(pooled, FLOAT).astype(np.float64)[: dimensions or None]
    length = float(np.sqrt(np.add.accumulate(values * values)[-1]))
    return (values / length if length else values).astype(FLOAT).tobytes()
