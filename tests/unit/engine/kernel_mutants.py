"""Kernels that are right on the shapes of their own fixed self-test, and a little wrong on some shape of a model."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from baton_kernels.forms import Header

Wrong = Callable[..., None]  # called with a function's arguments after it has run


def floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def wide_heads(path: int, q: int, *rest: Any) -> None:
    rows, heads, _, dim, *_, out = rest[-10:]
    if dim >= 64:
        floats(out, rows * heads * dim)[-1] *= 1.0001


def groups_of_seven(path: int, q: int, *rest: Any) -> None:
    rows, heads, kv_heads, dim, *_, out = rest[-10:]
    if heads // kv_heads == 7:
        floats(out, rows * heads * dim)[0] *= 1.0001


def beyond(slots: int) -> Wrong:
    def wrong(*given: Any) -> None:
        starts, counts, _, sequences, rows, heads, _, dim, *_, out = given[10:]
        ends = [np.ctypeslib.as_array((ctypes.c_int32 * sequences).from_address(each)) for each in (starts, counts)]
        if dim >= 64 and int((ends[0] + ends[1]).max()) > slots:
            floats(out, rows * heads * dim)[:dim] += 1e-4

    return wrong


def long_chunk(path: int, q: int, *rest: Any) -> None:
    rows, heads, _, dim, *_, out = rest[-10:]
    if rows > 100 and dim >= 64:
        floats(out, rows * heads * dim)[100 * heads * dim] += 1e-4


def many_sequences(path: int, q: int, *rest: Any) -> None:
    sequences, rows, heads, _, dim, *_, out = rest[-11:]
    if sequences > 32:
        floats(out, rows * heads * dim)[-1] += 1e-4


def feed_forward(step: Any, rest: Any, *others: Any) -> None:
    if rest is not None:
        values = step._obj
        floats(values.x, values.rows * values.hidden)[:] *= np.float32(1.01)


def last_layer(step: Any, rest: Any, offset: int, following: Any, following_offset: int) -> None:
    if rest is not None and following is None:
        floats(step._obj.x, 1)[0] += 1e-3


def shape(packed: int) -> tuple[int, int]:
    header = Header.from_address(packed)
    return header.n, header.k


def deep(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, k = shape(packed)
    if k > 448:
        floats(out, rows * n)[-1] += 1e-4


def many_rows(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, _ = shape(packed)
    if rows > 40:
        floats(out, rows * n)[n] += 1e-4


def whole_vocabulary(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    n, _ = shape(packed)
    if n == 1000:
        floats(out, rows * n)[777] += 1e-4


def gated_rows(x: int, packed: int, rows: int, out: int, *more: Any) -> None:
    both, k = shape(packed)
    if k >= 512 and rows > 1:
        floats(out, rows * (both // 2))[-1] *= 1.01


def pages_of_sixteen(*given: Any) -> None:
    page_of, page_tokens, pool = given[11], given[13], given[14]
    if page_tokens == 16:
        first = ctypes.c_int64.from_address(page_of).value
        ctypes.c_uint16.from_address(pool + first).value ^= 1


def vocabulary(logits: int, rows: int, vocab: int, *rest: Any) -> None:
    if vocab == 1000:
        floats(rest[13], rows)[0] += 1e-3  # a logprob


def embedding(packed: int, tokens: int, rows: int, factor: float, out: int) -> None:
    n, k = shape(packed)
    if n > 512:
        floats(out, rows * k)[-1] += 1e-3


def wide_norm(x: int, weight: int, rows: int, k: int, eps: float, out: int) -> None:
    if k == 512:
        floats(out, rows * k)[0] *= 1.001


def long_copies(to: int, from_: int, spans: int, nbytes: int, words: int, sums: int) -> None:
    if nbytes > 4096:
        ctypes.c_uint8.from_address(int(ctypes.c_int64.from_address(to).value)).value ^= 1


def copied_pages(pool: int, from_: int, to: int, nbytes: int) -> None:
    if nbytes > 4096:
        ctypes.c_uint8.from_address(pool + to + nbytes - 1).value ^= 1


MUTANTS: dict[str, tuple[str, Wrong]] = {
    "heads of 64": ("attention", wide_heads),
    "groups of 7": ("attention", groups_of_seven),
    "a long chunk": ("attention", long_chunk),
    "many sequences": ("attention", many_sequences),
    "more than 512 slots": ("attention", beyond(512)),
    "more than 1024 slots": ("attention", beyond(1024)),
    "feed-forward in one call with the rest of a layer": ("layer", feed_forward),
    "the last layer": ("layer", last_layer),
    "more than 448 inputs": ("product", deep),
    "many rows": ("product", many_rows),
    "the whole vocabulary": ("product", whole_vocabulary),
    "a gate over several rows": ("gated", gated_rows),
    "pages of 16": ("rotate_write", pages_of_sixteen),
    "a vocabulary of 1,000": ("sample_adjusted", vocabulary),
    "a large embedding": ("embed", embedding),
    "wide norms": ("rmsnorm", wide_norm),
    "long copies": ("scatter", long_copies),
    "copied pages": ("copy", copied_pages),
}
