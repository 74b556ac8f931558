"""Perplexity of opened weights on a text: how much rounding them has cost.

The text is read in windows of equal length, each without what came before it, so that figures of two sets of weights on
one text can be compared. It computes as a worker does: the same pages, the same kernels, in chunks."""

from collections.abc import Callable, Sequence
from math import exp

import numpy as np

from engine.model.forward import Forward
from engine.model.page_memory import page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Weights
from engine.step.layer_groups import unreported
from engine.step.plan import Piece
from mesh.messages.jobs import Sampling

WINDOW = 512
_CHUNK = 128  # rows whose logits are held at once
_PAGE = 32


def perplexity(
    weights: Weights, tokens: Sequence[int], *, window: int = WINDOW, told: Callable[[int], object] = lambda done: None
) -> float:
    """e to the mean negative logprob of each token that has another one before it in its window. `told` hears how many
    tokens are read."""
    window = min(window, weights.config.context)
    layout, pages = page_layout(weights, None, _PAGE), -(-window // _PAGE)
    pool = np.zeros(pages * layout.page_bytes, np.uint8)
    forward = Forward(weights, page_memory(pool, layout, _PAGE, segment=0))
    limits = RowLimits(weights.config.vocab, weights.config.context, pages, _PAGE, layout.page_bytes)
    table, every, total, count = tuple(range(pages)), Sampling(), 0.0, 0
    for first in range(0, len(tokens) - 1, window):
        text = tuple(tokens[first : first + window])
        for start in range(0, len(text) - 1, _CHUNK):
            rows = text[start : min(start + _CHUNK, len(text) - 1)]
            piece = Piece(0, rows, start, table[: -(-(start + len(rows)) // _PAGE)], len(rows), 0, every)
            logits = forward.logits(forward.hidden(Rows.of([piece], limits), unreported)).astype(np.float64)
            top = logits.max(1, keepdims=True)
            sums = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
            following = np.array(text[start + 1 : start + 1 + len(rows)])
            total += float((sums - logits[np.arange(len(rows)), following]).sum())
            count += len(rows)
            told(first + start + len(rows))
    return exp(total / count) if count else float("nan")
