"""The self-test's parts that run as steps do: the pass over layers as `Forward` calls it, logits, samples, proposals.

The pass has the model's first and last layer, so that the call that ends one layer and begins the next is in it, and
the head's first columns. Where some layers have experts and others none, it has both kinds. `baton_kernels/layer.py`
has calls of its own for what `products` and `attention` call one by one: both are used here, since a step in which few
rows are sampled ends with the latter."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import baton_kernels as kernels
from baton_kernels import KernelError
from engine.model.forward import Forward
from engine.model.page_memory import page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Bytes, Floats, LayerWeights, Weights
from engine.model.work import mlp_width
from engine.selftest.inputs import PANEL, Array, kinds_of_layers, slots_of
from engine.selftest.pages import block_tables, write_layer
from engine.selftest.sampling import columns_of
from engine.step.layer_groups import unreported
from engine.step.plan import Piece
from engine.step.sampling import sample, sampled_rows, sampling_arrays
from mesh.messages.jobs import Sampling

_MOST = 6e8  # multiply-adds that the chunk of a prompt may take; on large models it has fewer rows
_ROWS = (8, 75)  # least and most rows of that chunk
_HEAD_BYTES = 16 << 20  # size of the head's columns that a step multiplies
_FRESH, _VERIFIED = 5, 5  # rows of a prompt that begins, and of drafts that are verified


def steps(weights: Weights, page_tokens: int) -> Iterator[Array]:
    """Two steps: a chunk behind a long text beside a new prompt, decode and drafts; then decode alone."""
    slots, rows = slots_of(weights), _chunk_rows(weights)
    long, fresh = tuple(_tokens(weights, slots)), min(_FRESH, slots)
    forward, separate, limits, tables = _opened(weights, page_tokens, (slots, fresh))
    pages, new_pages = tuple(tables[0].tolist()), tuple(tables[1].tolist())
    first, drafts = slots - rows, min(_VERIFIED, max(1, slots - rows - 1))
    one, some = Sampling(top_logprobs=3), Sampling(temperature=0.8, top_p=0.95, seed=7, max_tokens=99)
    mixed = [
        Piece(0, long[first:], first, pages, 1, 0, one),
        Piece(1, long[:fresh], 0, new_pages),
        Piece(2, long[first - drafts : first], first - drafts, pages, drafts, 4, some),
    ]
    decode = [
        Piece(0, long[-1:], slots - 1, pages, 1, 1, one),
        Piece(1, long[fresh - 1 : fresh], fresh - 1, new_pages, 1, 0, some),
        Piece(2, long[first - 1 : first], first - 1, pages, 1, 5, some),
    ]
    for pieces in (mixed, decode):
        rows_of_step = Rows.of(pieces, limits)
        hidden = forward.hidden(rows_of_step, unreported)
        if hidden.tobytes() != separate.hidden(rows_of_step, unreported).tobytes():
            raise KernelError("self-test failed: a layer in one call has other bits than its kernels one by one")
        logits = forward.logits(hidden)
        yield from (hidden, logits)
        yield from columns_of([each for piece in sample(pieces, logits) for each in piece])


def proposals(draft: Weights, page_tokens: int) -> Iterator[Array]:
    """The tokens that a draft proposes behind a long text and a new one."""
    slots = slots_of(draft)
    beyond, fresh = min(4, slots // 4), min(_FRESH, slots // 2)
    text = tuple(_tokens(draft, slots))
    forward, _, limits, tables = _opened(draft, page_tokens, (slots, fresh + beyond))
    start = slots - beyond - min(8, slots // 4)
    pieces = [
        Piece(0, text[start : slots - beyond], start, tuple(tables[0].tolist()), 1, 0, Sampling(max_tokens=99)),
        Piece(1, text[:fresh], 0, tuple(tables[1].tolist()), 1, 0, Sampling(temperature=0.8, seed=3, max_tokens=99)),
    ]
    arrays = sampling_arrays(sampled_rows(pieces), limits.vocab)
    yield forward.propose(pieces, arrays, (beyond + 1, beyond), limits)[:beyond]


def _opened(weights: Weights, page_tokens: int, lengths: tuple[int, int]) -> tuple[Forward, Forward, RowLimits, Array]:
    """The cut model over a pool in which all slots of two sequences are written: as a worker computes it, and with a
    call for every kernel."""
    layers = _layers(weights)
    context, vocab = len(weights.cos), _vocabulary(weights)
    windows = weights.config.windows[:1] + weights.config.windows[1:][-1:]
    config = replace(weights.config, layers=len(layers), windows=windows, vocab=vocab, context=context)
    head = kernels.panels(weights.head, range(-(-vocab // PANEL)), vocab)
    cut = replace(weights, layers=layers, config=config, head=head)
    layout = page_layout(cut, None, page_tokens)
    tables = block_tables(*lengths, page_tokens=page_tokens)
    pages = int(tables.max()) + 1
    pool = np.zeros(pages * layout.page_bytes, np.uint8)
    memory = page_memory(pool, layout, page_tokens, segment=0)
    for index, layer in enumerate(layers):
        write_layer(cut, layer, pool, tables, lengths, page_tokens, layout.page_bytes, memory.layer(index))
    limits = RowLimits(vocab, context, pages, page_tokens, layout.page_bytes)
    return Forward(cut, memory), Forward(cut, memory, _product), limits, tables


def _layers(weights: Weights) -> tuple[LayerWeights, ...]:
    """The first layer and the last, and one of another kind, if they are of one kind and others are not."""
    first, last = weights.layers[:1], weights.layers[1:][-1:]
    between = [layer for layer in kinds_of_layers(weights)[1:] if (layer.router is None) != (last[0].router is None)]
    return (*first, *between, *last)


def _product(x: Floats, packed: Bytes, out: Floats, bias: Floats | None = None, residual: Floats | None = None) -> None:
    """The product by another name: `Forward` then calls every kernel by itself."""
    kernels.product(x, packed, out, bias, residual)


def _tokens(weights: Weights, count: int) -> list[int]:
    """A text over the columns of the head that steps multiply."""
    numbers: list[int] = (np.arange(count, dtype=np.int64) * 7919 % _vocabulary(weights)).tolist()
    return numbers


def _vocabulary(weights: Weights) -> int:
    config = weights.config
    columns = _HEAD_BYTES // (weights.head.nbytes // config.vocab + 1)
    return min(config.vocab, max(32, columns // 32 * 32))


def _row_cost(weights: Weights) -> int:
    """Multiply-adds of one row in the cut model's layers."""
    config = weights.config
    layer = config.hidden * (config.qkv_width + mlp_width(config)) + config.q_width * config.hidden
    return layer * len(_layers(weights))


def _chunk_rows(weights: Weights) -> int:
    least, most = _ROWS
    rows = max(least, min(most, int(_MOST / _row_cost(weights))))
    return max(1, min(rows, slots_of(weights) // 4))
