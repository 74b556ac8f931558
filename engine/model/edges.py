"""The changes of adapters to a model's edges: to the embedding of their rows, and to the logits that the head makes of
them.

Each row is computed with its own adapter's matrices, in the order of one row alone, so neither the batch nor chunks
change its bits. Where an adapter has a matrix of its own, its rows are gathered, computed and put back."""

import numpy as np

import baton_kernels as kernels
from baton_kernels.deltas import AdaptedRows, add_deltas
from engine.model.rows import Ints
from engine.model.scratch import Scratch
from engine.model.separate_kernels import Product
from engine.model.weights import Bytes, Floats
from engine.step.adapted import EmbeddingDelta, RowsOfAdapters


def adapt_embedding(adapted: RowsOfAdapters, tokens: Ints, x: Floats, factor: float) -> None:
    """Changes the rows of x, which hold the model's embedding of the tokens, to those of their adapters. `factor`: of
    the model's embedding."""
    for adapter, rows in adapted:
        if adapter.edges is None:
            continue
        if adapter.edges.embedding is not None:
            own = np.empty((len(rows), x.shape[1]), np.float32)
            kernels.embed(adapter.edges.embedding, tokens[rows], own, factor=factor)
            x[rows] = own
        if adapter.edges.embedding_delta is not None:
            _add(adapter.edges.embedding_delta, rows, tokens[rows], x)


def _add(delta: EmbeddingDelta, rows: Ints, tokens: Ints, x: Floats) -> None:
    columns = delta.columns[tokens]
    if columns.dtype == np.uint16:
        columns = (columns.astype(np.uint32) << 16).view(np.float32)
    hidden = np.zeros((len(x), columns.shape[1]), np.float32)
    hidden[rows] = columns
    add_deltas(hidden, x, AdaptedRows([delta.table], [rows]), 0)


def multiply_head(
    product: Product, hidden: Floats, head: Bytes, adapted: RowsOfAdapters, out: Floats, scratch: Scratch
) -> None:
    """out [rows, vocab]: the product with the model's head, for rows of adapters with their own."""
    changed = [(each.edges, rows) for each, rows in adapted if each.edges is not None]
    replaced = [(edges.head, rows) for edges, rows in changed if edges.head is not None]
    if not replaced:
        product(hidden, head, out)
    else:
        taken = np.concatenate([rows for _, rows in replaced])
        left = np.setdiff1d(np.arange(len(hidden), dtype=np.int32), taken)
        for matrix, rows in ((head, left), *replaced):
            if len(rows):
                part = scratch.take("logits_of_some", len(rows), out.shape[1])
                product(hidden[rows], matrix, part)
                out[rows] = part
    deltas = [(edges.head_table, rows) for edges, rows in changed if edges.head_table is not None]
    if deltas:
        tables, rows_of = zip(*deltas, strict=True)
        add_deltas(hidden, out, AdaptedRows(tables, rows_of), 0)
