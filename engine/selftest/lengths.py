"""The self-test's part over lengths: attention over every count of slots up to a thousand, then over ever more, up to
the model's own context, in each window that a layer has.

It has one head of keys and values and the queries that share it, since `attention` has all heads already. Far texts
repeat few pages in an order without a period, so that a model with a context of 128k needs little memory. They repeat
them in stretches of 64 slots, which every page size divides, so the page size leaves no trace in the fingerprint."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baton_kernels import KernelError
from engine.model.page_memory import layer_bytes
from engine.model.weights import Weights
from engine.selftest.inputs import SLOTS, Array, each_window, slots_of
from engine.selftest.pages import attend, block_tables, write_layer

_STRETCH = 64  # slots that far texts repeat together
_STRETCHES = 61  # how many of them there are, a prime
_STEP = 37  # slots between two of the short texts
_EDGES = (32, 512, 544, 1024)  # attention begins a block or a segment here
_WINDOW_EDGES = (-1, 0, 1, 2, 31, 32, 33)  # slots beside the length of a window
_FAR_BUDGET = 24e6  # slots x dimensions of all queries over far texts; contexts of 128k cost more
_KEPT = (0.98, 0.95, 0.9, 0.75, 0.625)  # a far text's part of the next longer one, the first that the budget allows
_LAST_ROWS = 3  # rows in a chunk that ends where the model's context does


def lengths(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """All rows of a text as one chunk, and some of them alone: equal bits. Then single rows of ever longer texts."""
    group = weights.config.heads // weights.config.kv_heads
    far = far_lengths(len(weights.cos), weights.config.head_dim)
    for one in each_window(weights):
        yield _near(_with_heads(one, 1), page_tokens, every=True)
        yield _near(_with_heads(one, group), page_tokens, every=False)
        if far:
            heads = int(_FAR_BUDGET / (sum(far) * weights.config.head_dim))
            yield _far(_with_heads(one, max(1, min(group, heads))), page_tokens, _beside_window(one, far))


def far_lengths(context: int, head_dim: int) -> list[int]:
    """Ascending lengths of texts beyond those that other parts attend, the model's context at the end. The longer they
    are, the farther apart they lie."""
    for keep in _KEPT:
        found, length = [], context
        while length > SLOTS:
            found.append(length)
            length = int(length * keep) - 5
        if sum(found) * head_dim <= _FAR_BUDGET:
            break
    return found[::-1]


def _beside_window(weights: Weights, far: list[int]) -> list[int]:
    """The far lengths, and among them those at which the window begins to hide slots."""
    edges = (weights.config.window(0) + off for off in _WINDOW_EDGES)
    return sorted({*far, *(edge for edge in edges if SLOTS < edge < far[-1])})


def _with_heads(weights: Weights, heads: int) -> Weights:
    return replace(weights, config=replace(weights.config, heads=heads, kv_heads=1))


def _near(weights: Weights, page_tokens: int, *, every: bool) -> Array:
    """`every`: the rows are computed as one chunk too."""
    slots = slots_of(weights)
    table = block_tables(slots, page_tokens=page_tokens)
    pool = _pool(weights, page_tokens, int(table.max()) + 1)
    stride = len(pool) // (int(table.max()) + 1)
    q = write_layer(weights, weights.layers[0], pool, table, (slots,), page_tokens, stride, 0)
    edges = {edge + off for edge in _EDGES for off in (-2, -1, 0, 1)}
    if window := weights.config.window(0):
        edges |= {window + off for off in _WINDOW_EDGES}
    some = sorted({*range(0, slots, _STEP), *(row for row in edges if row < slots)})
    alone = attend(weights, q[some], pool, np.repeat(table, len(some), 0), page_tokens, some, [1] * len(some))
    if not every:
        return alone
    chunk = attend(weights, q, pool, table, page_tokens, [0], [slots])
    if chunk[some].tobytes() != alone.tobytes():
        raise KernelError("self-test failed: attention of a long prompt has other bits than that of its rows alone")
    return chunk


def _far(weights: Weights, page_tokens: int, far: list[int]) -> Array:
    context = far[-1]
    stretches = min(_STRETCHES, context // _STRETCH)
    stored, each = stretches * _STRETCH, _STRETCH // page_tokens
    pool = _pool(weights, page_tokens, stretches * each)
    stride = len(pool) // (stretches * each)
    written = np.arange(stretches * each, dtype=np.int32)[None]
    q = write_layer(weights, weights.layers[0], pool, written, (stored,), page_tokens, stride, 0)
    order = np.arange(-(-context // _STRETCH), dtype=np.int64)
    order = (order * order * 7 + order * 3) % stretches  # which stored stretch a far one repeats
    table = (order[:, None] * each + np.arange(each)).astype(np.int32).reshape(1, -1)
    rows = min(_LAST_ROWS, context)
    singles = [*(length - 1 for length in far), *range(context - rows, context - 1)]
    queries = q[[row % stored for row in singles]]
    alone = attend(weights, queries, pool, np.repeat(table, len(singles), 0), page_tokens, singles, [1] * len(singles))
    last = q[[row % stored for row in range(context - rows, context)]]
    chunk = attend(weights, last, pool, table, page_tokens, [context - rows], [rows])
    if chunk[-1].tobytes() != alone[len(far) - 1].tobytes() or chunk[:-1].tobytes() != alone[len(far) :].tobytes():
        raise KernelError(
            "self-test failed: attention of a chunk behind a long text has other bits than its rows alone"
        )
    return alone


def _pool(weights: Weights, page_tokens: int, pages: int) -> Array:
    return np.zeros(pages * layer_bytes(weights, page_tokens), np.uint8)
