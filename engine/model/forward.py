"""The pass over a model's layers, on the CPU kernels: rows in, final hidden states of the sampled rows out.

It touches its scratch memory and the pages that the rows name, nothing else. A layer's keys and values are final as
soon as they are rotated and written, so `written(layer)` is called there, before that layer's attention. In the last
layer, rows that are not sampled need only their keys and values: when most rows are such rows, the rest of that layer
is computed for the sampled rows alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.model.mixture import mix_one_by_one, mixture_of
from engine.model.native import address, native_layer, native_step, optional_address
from engine.model.page_memory import PageMemory
from engine.model.queries import Queries, add_adapters
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


_Result = Callable[..., object]  # writes rows into its first argument, plus `residual` where it is given


class Forward:
    def __init__(self, weights: Weights, pages: PageMemory, product: Product = kernels.product) -> None:
        self._weights, self._pages, self._product = weights, pages, product
        self._scratch: dict[str, Floats] = {}
        at_once = weights.layers if product is kernels.product else ()
        self._native = [
            native_layer(index, layer, weights.config, weights.config.window(index))
            for index, layer in enumerate(at_once)
        ]
        self._layers = (kernels.layer.Layer * len(self._native))(*self._native)
        self._embed, self._norm, self._norm_bias = (
            address(weights.embed),
            address(weights.norm),
            optional_address(weights.norm_bias),
        )
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
        every, pages = Queries.of(rows), self._pages
        x = self._take("x", len(rows.tokens), config.hidden)
        kernels.embed(weights.embed, rows.tokens, x, factor=config.embedding_scale)
        for index, layer in enumerate(weights.layers):
            q = self._keys_and_values(layer, index, rows, rows.page_of[pages.band(index)] + pages.layer(index), x)
            written(index)
            if index + 1 < config.layers:
                self._rest(layer, index, every, q, x)
        return x, q, self._end(every, q, x) if whole else x

    def _end(self, queries: Queries, q: Floats, x: Floats) -> Floats:
        """Computes the rest of the last layer and the final norm."""
        weights = self._weights
        self._rest(weights.layers[-1], weights.config.layers - 1, queries, q, x)
        return self._normed(x, weights.norm, weights.norm_bias)

    def _all_at_once(self, rows: Rows, written: LayerWritten, *, whole: bool) -> tuple[Floats, Floats, Floats]:
        """Computes the same as `_one_by_one`, with one native call per layer."""
        config, pages, native = self._weights.config, self._pages, self._native
        count, run = len(rows.tokens), kernels.layer.run
        step = self._step = self._step if count <= self._room else self._new_step(count)
        bands, step.sequences, step.max_pages = rows.tables.shape
        step.rows, step.slots, step.offset_in_page = count, address(rows.slots), address(rows.offset_in_page)
        page_of, tables = [address(each) for each in rows.page_of], [address(each) for each in rows.tables]
        step.page_of, step.tables = page_of[0], tables[0]
        step.starts, step.counts = address(rows.starts), address(rows.counts)
        step.first_row = address(rows.first_row)
        step.adapted, step.gate_up = self._adapted(rows)
        kernels.layer.begin(step, self._embed, address(rows.tokens))
        before = None
        for index, layer in enumerate(native):
            if bands > 1:  # the call attends in the layer before and writes keys and values of this one
                step.page_of, step.tables = page_of[pages.band(index)], tables[pages.band(index - 1)]
            run(step, before, pages.layer(index - 1), layer, pages.layer(index))
            written(index)
            before = layer
        if whole:
            step.tables = tables[pages.band(config.layers - 1)]
            kernels.layer.finish(step, native[-1], pages.layer(config.layers - 1), self._norm, self._norm_bias)
        x, q, normed = (self._scratch[name][:count] for name in ("x", "q", "normed"))
        return x, q, normed if whole else x

    def _adapted(self, rows: Rows) -> tuple[int | None, int | None]:
        """Addresses of the rows that have adapters, and of scratch memory that only steps with such rows need."""
        if rows.adapted is None:
            return None, None
        both = self._take("gate_up", len(rows.tokens), self._weights.config.gate_up_width)
        return rows.adapted.address, address(both)

    def _new_step(self, count: int) -> kernels.layer.LayerStep:
        """Makes scratch memory for so many rows, at least twice as much as before, and a step that names its
        addresses."""
        config = self._weights.config
        self._room = max(count, 2 * self._room)
        scratch = {
            "x": self._take("x", self._room, config.hidden),
            "normed": self._take("normed", self._room, config.hidden),
            "qkv": self._take("qkv", self._room, config.qkv_width),
            "q": self._take("q", self._room, config.heads, config.head_dim),
            "attended": self._take("attended", self._room, config.q_width),
            "gated": self._take("gated", self._room, config.ffn),
        }
        return native_step(self._weights, self._pages, scratch)

    def logits(self, hidden: Floats) -> Floats:
        """[rows, vocab]; valid until the next call."""
        config = self._weights.config
        out = self._take("logits", len(hidden), config.vocab)
        if len(hidden):
            self._product(hidden, self._weights.head, out)
            if config.logits_cap:
                kernels.cap(out, config.logits_cap)
        return out

    def propose(
        self, pieces: Sequence[Piece], sampling: kernels.draft.SamplingArrays, wanted: Sequence[int], limits: RowLimits
    ) -> Ints:
        """Reads the pieces' rows, then samples `wanted` tokens behind each piece, a token of every piece per round:
        [rounds, pieces]."""
        config, pages = self._weights.config, self._pages
        text = np.array([token for piece in pieces for token in piece.tokens], np.int32)
        # The last proposal is not read; a model with a draft has one band.
        (tables,) = block_tables(pieces, limits, [max(0, count - 1) for count in wanted])
        step = self._step = self._step if len(text) <= self._room else self._new_step(len(text))
        model = kernels.draft.Model(
            layers=self._layers,
            count=config.layers,
            first_byte=pages.first_byte,
            layer_bytes=pages.layer_bytes,
            embedding=self._embed,
            norm=self._norm,
            norm_bias=self._norm_bias,
            head=address(self._weights.head),
            vocab=config.vocab,
            logits=address(self._take("logits", len(pieces), config.vocab)),
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

    def _keys_and_values(
        self, layer: LayerWeights, index: int, rows: Rows, page_of: NDArray[np.int64], x: Floats
    ) -> Floats:
        """Writes the rows' keys and values into their pages; returns the rotated queries."""
        weights, config, pages = self._weights, self._weights.config, self._pages
        count = len(x)
        qkv = self._take("qkv", count, config.qkv_width)
        q = self._take("q", count, config.heads, config.head_dim)
        read = self._normed(x, layer.input_norm, layer.input_norm_bias)
        self._product(read, layer.qkv, qkv, bias=layer.qkv_bias)
        add_adapters(rows.adapted, index, "qkv", read, qkv)
        q_norm, k_norm = layer.q_norm, layer.k_norm
        if q_norm is not None and k_norm is not None and config.qk_norm_width:
            kernels.rmsnorm_within(qkv, q_norm, 0, config.eps)
            kernels.rmsnorm_within(qkv, k_norm, config.q_width, config.eps)
            q_norm = k_norm = None
        if config.qkv_limit:
            kernels.clip(qkv, config.qkv_limit)
        kernels.rotate_write(
            weights.path,
            qkv,
            config.heads,
            config.kv_heads,
            config.head_dim,
            layer.cos,
            layer.sin,
            rows.slots,
            page_of,
            rows.offset_in_page,
            pages.page_tokens,
            pages.pool,
            q,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=config.eps,
            kv=weights.kv,
        )
        return q

    def _rest(self, layer: LayerWeights, index: int, queries: Queries, q: Floats, x: Floats) -> None:
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
            queries.tables[pages.band(index)],
            queries.starts,
            queries.counts,
            queries.first_row,
            config.heads,
            config.kv_heads,
            config.head_dim,
            pages.page_tokens,
            config.scale,
            attended,
            weights.kv,
            config.attention_cap,
            config.window(index),
        )
        adds = partial(add_adapters, queries.adapted, index)
        self._add(x, layer.attended_norm, self._result(attended, layer.o, layer.o_bias, partial(adds, "o")))
        read = self._normed(x, layer.ffn_norm, layer.ffn_norm_bias)
        self._add(x, layer.fed_norm, self._feed_forward(layer, index, queries, read))

    def _feed_forward(self, layer: LayerWeights, index: int, queries: Queries, read: Floats) -> _Result:
        """The last product of the feed-forward block for these rows, or all of a mixture of experts."""
        config, mixture = self._weights.config, mixture_of(layer, self._weights.config)
        if mixture is not None:
            if self._native:
                return partial(kernels.experts.run, read, self._native[index].mlp)
            return partial(mix_one_by_one, read, mixture, product=self._product)
        assert layer.gate_up is not None and layer.down is not None
        gated, adds = self._take("gated", len(read), config.ffn), partial(add_adapters, queries.adapted, index)
        if queries.adapted is None:
            between = kernels.gated if config.row.tensors.gated else kernels.activated
            between(read, layer.gate_up, gated, layer.gate_up_bias, activation=config.activation)
        else:
            both = self._take("gate_up", len(read), config.gate_up_width)
            self._product(read, layer.gate_up, both, bias=layer.gate_up_bias)
            adds("gate_up", read, both)
            kernels.between(both, gated, activation=config.activation)
        return self._result(gated, layer.down, layer.down_bias, partial(adds, "down"))

    def _result(
        self, inputs: Floats, packed: Bytes, bias: Floats | None, adds: Callable[[Floats, Floats], None]
    ) -> _Result:
        """A product, and what adapters add to it."""

        def compute(out: Floats, *, residual: Floats | None = None) -> None:
            self._product(inputs, packed, out, bias=bias, residual=residual)
            adds(inputs, out)

        return compute

    def _normed(self, x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
        """The rows that the next product reads: x itself where the model has no norm."""
        if weight is None:
            return x
        config, out = self._weights.config, self._take("normed", len(x), self._weights.config.hidden)
        if bias is not None:
            kernels.layernorm(x, weight, bias, config.eps, out)
        else:
            kernels.rmsnorm(x, weight, config.eps, out)
        return out

    def _add(self, x: Floats, norm: Floats | None, compute: _Result) -> None:
        """Adds a result to the residual x, normalised and scaled before where the model does so."""
        config = self._weights.config
        if norm is None and config.residual_scale == 1.0:
            compute(x, residual=x)
            return
        out = self._take("normed", len(x), config.hidden)
        compute(out)
        kernels.add(x, out, norm=norm, eps=config.eps, factor=config.residual_scale)

    def _sampled_only(self, rows: Rows, q: Floats, x: Floats) -> tuple[Queries, Floats, Floats]:
        config, count = self._weights.config, len(rows.sampled)
        few_q = self._take("few_q", count, config.heads, config.head_dim)
        few_x = self._take("few_x", count, config.hidden)
        np.take(q, rows.sampled, axis=0, out=few_q, mode="clip")
        np.take(x, rows.sampled, axis=0, out=few_x, mode="clip")
        return Queries.sampled(rows), few_q, few_x

    def _take(self, name: str, rows: int, *width: int) -> Floats:
        """Scratch memory [rows, *width]. It is kept for the next step and only grows."""
        have = self._scratch.get(name)
        if have is None or len(have) < rows:
            grown = max(rows, 0 if have is None else 2 * len(have))
            have = self._scratch[name] = np.empty((grown, *width), np.float32)
        return have[:rows]
