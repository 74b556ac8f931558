"""The pass over a model's layers, on the CPU kernels: rows in, final hidden states of the sampled rows out.

It touches its scratch memory and the pages that the rows name, nothing else. A layer's keys and values are final as
soon as they are rotated and written, so `written(layer)` is called there, before that layer's attention. In the last
layer, rows that are not sampled need only their keys and values: when most rows are such rows, the rest of that layer
is computed for the sampled rows alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.model.page_memory import PageMemory
from engine.model.rows import Ints, RowLimits, Rows, block_tables
from engine.model.weights import Bytes, Floats, LayerWeights, Weights
from engine.step.layer_groups import LayerWritten
from engine.step.plan import Piece


class Product(Protocol):
    """The matrix product. A caller may hand in another one: so `baton verify` shows that it notices a wrong one."""

    def __call__(
        self,
        x: Floats,
        packed: Bytes,
        out: Floats,
        bias: Floats | None = None,
        residual: Floats | None = None,
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class _Queries:
    """The rows that attend: all of them, or in the last layer the sampled ones."""

    tables: Ints
    starts: Ints
    counts: Ints
    first_row: Ints


class Forward:
    def __init__(self, weights: Weights, pages: PageMemory, product: Product = kernels.product) -> None:
        self._weights, self._pages, self._product = weights, pages, product
        self._scratch: dict[str, Floats] = {}
        self._native = [_native(layer) for layer in weights.layers] if product is kernels.product else []
        self._layers = (kernels.layer.Layer * len(self._native))(*self._native)
        self._embed, self._norm = _address(weights.embed), _address(weights.norm)
        self._step, self._room = kernels.layer.LayerStep(), 0  # kept as long as a step has at most `_room` rows

    def hidden(self, rows: Rows, written: LayerWritten) -> Floats:
        """Final hidden states, normalised, of the sampled rows: [sampled, hidden]. Valid until the next call."""
        sampled, count = len(rows.sampled), len(rows.tokens)
        few = 2 * sampled < count  # few enough that the last layer is worth computing for gathered rows
        if self._native:
            x, q, out = self._all_at_once(rows, written, whole=not few)
        else:
            x, q, out = self._one_by_one(rows, written, whole=not few)
        if sampled == 0 or sampled == count:
            return out[:sampled]
        if not few:
            taken = self._take("few_x", sampled, self._weights.config.hidden)
            return np.take(out, rows.sampled, axis=0, out=taken, mode="clip")
        queries, q, x = self._sampled_only(rows, q, x)
        return self._end(queries, q, x)

    def _one_by_one(self, rows: Rows, written: LayerWritten, *, whole: bool) -> tuple[Floats, Floats, Floats]:
        """Computes all layers, up to the last one's keys and values, with the product that was handed in. Returns that
        layer's input, its queries and, when `whole`, the result of its rest and of the final norm for all rows."""
        weights, config = self._weights, self._weights.config
        every = _Queries(rows.tables, rows.starts, rows.counts, rows.first_row)
        page_of = rows.page_of + self._pages.first_byte
        x = self._take("x", len(rows.tokens), config.hidden)
        kernels.embed(weights.embed, rows.tokens, x)
        for index, layer in enumerate(weights.layers):
            q = self._keys_and_values(layer, rows, page_of, x)
            written(index)
            page_of += self._pages.layer_bytes
            if index + 1 < config.layers:
                self._rest(layer, index, every, q, x)
        return x, q, self._end(every, q, x) if whole else x

    def _end(self, queries: _Queries, q: Floats, x: Floats) -> Floats:
        """Computes the rest of the last layer and the final norm."""
        weights, config = self._weights, self._weights.config
        self._rest(weights.layers[-1], config.layers - 1, queries, q, x)
        out = self._take("normed", len(x), config.hidden)
        kernels.rmsnorm(x, weights.norm, config.eps, out)
        return out

    def _all_at_once(self, rows: Rows, written: LayerWritten, *, whole: bool) -> tuple[Floats, Floats, Floats]:
        """Computes the same as `_one_by_one`, with one native call per layer."""
        config, pages, native = self._weights.config, self._pages, self._native
        count, run = len(rows.tokens), kernels.layer.run
        step = self._step = self._step if count <= self._room else self._new_step(count)
        step.rows, step.sequences, step.max_pages = count, *rows.tables.shape
        step.slots, step.page_of = _address(rows.slots), _address(rows.page_of)
        step.offset_in_page, step.tables = _address(rows.offset_in_page), _address(rows.tables)
        step.starts, step.counts = _address(rows.starts), _address(rows.counts)
        step.first_row = _address(rows.first_row)
        kernels.layer.begin(step, self._embed, _address(rows.tokens))
        before = None
        for index, layer in enumerate(native):
            run(step, before, pages.layer(index - 1), layer, pages.layer(index))
            written(index)
            before = layer
        if whole:
            kernels.layer.finish(step, native[-1], pages.layer(config.layers - 1), self._norm)
        x, q, normed = (self._scratch[name][:count] for name in ("x", "q", "normed"))
        return x, q, normed if whole else x

    def _new_step(self, count: int) -> kernels.layer.LayerStep:
        """Makes scratch memory for so many rows, at least twice as much as before, and a step that names its
        addresses."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        self._room = max(count, 2 * self._room)
        scratch: dict[str, NDArray[Any]] = {
            "x": self._take("x", self._room, config.hidden),
            "normed": self._take("normed", self._room, config.hidden),
            "qkv": self._take("qkv", self._room, config.qkv_width),
            "q": self._take("q", self._room, config.heads, config.head_dim),
            "attended": self._take("attended", self._room, config.q_width),
            "gated": self._take("gated", self._room, config.ffn),
        }
        lasting: dict[str, NDArray[Any]] = {"pool": pages.pool, "cos": weights.cos, "sin": weights.sin}
        return kernels.layer.LayerStep(
            path=kernels.PATHS.index(weights.path),
            kv=kernels.kv_index(weights.kv),
            eps=config.eps,
            scale=config.head_dim**-0.5,
            hidden=config.hidden,
            ffn=config.ffn,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            page_tokens=pages.page_tokens,
            max_positions=len(weights.cos),
            pool_bytes=pages.pool.size,
            page_stride=pages.page_bytes,
            **{name: _address(array) for name, array in (scratch | lasting).items()},
        )

    def logits(self, hidden: Floats) -> Floats:
        """[rows, vocab]; valid until the next call."""
        config = self._weights.config
        out = self._take("logits", len(hidden), config.vocab)
        if len(hidden):
            self._product(hidden, self._weights.head, out)
        return out

    def propose(
        self, pieces: Sequence[Piece], sampling: kernels.draft.SamplingArrays, wanted: Sequence[int], limits: RowLimits
    ) -> Ints:
        """Reads the pieces' rows, then samples `wanted` tokens behind each piece, a token of every piece per round:
        [rounds, pieces]."""
        config, pages = self._weights.config, self._pages
        text = np.array([token for piece in pieces for token in piece.tokens], np.int32)
        tables = block_tables(pieces, limits, [max(0, count - 1) for count in wanted])  # the last proposal is not read
        step = self._step = self._step if len(text) <= self._room else self._new_step(len(text))
        model = kernels.draft.Model(
            layers=self._layers,
            count=config.layers,
            first_byte=pages.first_byte,
            layer_bytes=pages.layer_bytes,
            embedding=self._embed,
            norm=self._norm,
            head=_address(self._weights.head),
            vocab=config.vocab,
            logits=_address(self._take("logits", len(pieces), config.vocab)),
        )
        return kernels.draft.propose(
            step,
            model,
            sampling,
            text=text,
            starts=np.array([piece.start for piece in pieces], np.int32),
            counts=np.array([len(piece.tokens) for piece in pieces], np.int32),
            tables=tables,
            wanted=np.array(wanted, np.int32),
        )

    def _keys_and_values(self, layer: LayerWeights, rows: Rows, page_of: NDArray[np.int64], x: Floats) -> Floats:
        """Writes the rows' keys and values into their pages; returns the rotated queries."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        count = len(x)
        normed = self._take("normed", count, config.hidden)
        qkv = self._take("qkv", count, config.qkv_width)
        q = self._take("q", count, config.heads, config.head_dim)
        kernels.rmsnorm(x, layer.input_norm, config.eps, normed)
        self._product(normed, layer.qkv, qkv, bias=layer.qkv_bias)
        kernels.rotate_write(
            weights.path,
            qkv,
            config.heads,
            config.kv_heads,
            config.head_dim,
            weights.cos,
            weights.sin,
            rows.slots,
            page_of,
            rows.offset_in_page,
            pages.page_tokens,
            pages.pool,
            q,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.eps,
            kv=weights.kv,
        )
        return q

    def _rest(self, layer: LayerWeights, index: int, queries: _Queries, q: Floats, x: Floats) -> None:
        """Attention, its output product and the feed-forward block; x becomes the next layer's input."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        count = len(x)
        attended = self._take("attended", count, config.q_width)
        kernels.attention(
            weights.path,
            q,
            pages.pool,
            pages.layer(index),
            pages.page_bytes,
            queries.tables,
            queries.starts,
            queries.counts,
            queries.first_row,
            config.heads,
            config.kv_heads,
            config.head_dim,
            pages.page_tokens,
            config.head_dim**-0.5,
            attended,
            weights.kv,
        )
        normed = self._take("normed", count, config.hidden)
        gated = self._take("gated", count, config.ffn)
        self._product(attended, layer.o, x, bias=layer.o_bias, residual=x)
        kernels.rmsnorm(x, layer.ffn_norm, config.eps, normed)
        kernels.gated(normed, layer.gate_up, gated)
        self._product(gated, layer.down, x, residual=x)

    def _sampled_only(self, rows: Rows, q: Floats, x: Floats) -> tuple[_Queries, Floats, Floats]:
        config, count = self._weights.config, len(rows.sampled)
        few_q = self._take("few_q", count, config.heads, config.head_dim)
        few_x = self._take("few_x", count, config.hidden)
        np.take(q, rows.sampled, axis=0, out=few_q, mode="clip")
        np.take(x, rows.sampled, axis=0, out=few_x, mode="clip")
        owner = np.searchsorted(rows.first_row, rows.sampled, side="right") - 1  # the piece of each sampled row
        pieces, first, counts = np.unique(owner, return_index=True, return_counts=True)
        starts = rows.slots[rows.sampled[first]]  # a piece's sampled rows are its last ones, next to each other
        queries = _Queries(rows.tables[pieces], starts, counts.astype(np.int32), first.astype(np.int32))
        return queries, few_q, few_x

    def _take(self, name: str, rows: int, *width: int) -> Floats:
        """Scratch memory [rows, *width]. It is kept for the next step and only grows."""
        have = self._scratch.get(name)
        if have is None or len(have) < rows:
            grown = max(rows, 0 if have is None else 2 * len(have))
            have = self._scratch[name] = np.empty((grown, *width), np.float32)
        return have[:rows]


def _native(layer: LayerWeights) -> kernels.layer.Layer:
    """The addresses of a layer's weights, which live as long as the model."""
    return kernels.layer.Layer(
        **{name: None if (array := getattr(layer, name)) is None else _address(array) for name in layer.__slots__}
    )


def _address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("a kernel's array must be C-contiguous")
    address: int = array.__array_interface__["data"][0]
    return address
