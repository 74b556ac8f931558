"""The pass over a model's layers, on the CPU kernels: rows in, final hidden states of the sampled rows out.

It touches its scratch memory and the pages that the rows name, nothing else. A layer's keys and values are final as
soon as they are rotated and written, so `written(layer)` is called there, before that layer's attention. In the last
layer, rows that are not sampled need only their keys and values: when most rows are such rows, the rest of that layer
is computed for the sampled rows alone."""

from collections.abc import Sequence

import numpy as np

import baton_kernels as kernels
from engine.model.edges import adapt_embedding, multiply_head
from engine.model.native import address, native_layer, native_step, optional_address
from engine.model.page_memory import PageMemory
from engine.model.queries import Queries
from engine.model.rows import Ints, RowLimits, Rows, block_tables
from engine.model.scratch import Scratch
from engine.model.separate_kernels import Product, SeparateKernels
from engine.model.weights import Floats, Weights
from engine.step.adapted import RowsOfAdapters
from engine.step.layer_groups import LayerWritten
from engine.step.plan import Piece

__all__ = ["Forward", "Product"]


class Forward:
    def __init__(self, weights: Weights, pages: PageMemory, product: Product = kernels.product) -> None:
        self._weights, self._pages, self._product = weights, pages, product
        self._scratch = Scratch()
        self._separate = SeparateKernels(weights, pages, product, self._scratch)
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
            taken = self._scratch.take("few_x", sampled, self._weights.config.hidden)
            return np.take(out, rows.sampled, axis=0, out=taken, mode="clip")
        queries, q, x = self._sampled_only(rows, q, x)
        return self._end(queries, q, x)

    def _one_by_one(self, rows: Rows, written: LayerWritten, *, whole: bool) -> tuple[Floats, Floats, Floats]:
        """Computes all layers, up to the last one's keys and values, with the product that was handed in. Returns that
        layer's input, its queries and, when `whole`, the result of its rest and of the final norm for all rows."""
        weights, config = self._weights, self._weights.config
        every, pages = Queries.of(rows), self._pages
        x = self._scratch.take("x", len(rows.tokens), config.hidden)
        kernels.embed(weights.embed, rows.tokens, x, factor=config.embedding_scale)
        adapt_embedding(rows.adapters, rows.tokens, x, config.embedding_scale)
        for index in range(config.layers):
            page_of = rows.page_of[pages.band(index)] + pages.layer(index)
            q = self._separate.keys_and_values(index, rows, page_of, x)
            written(index)
            if index + 1 < config.layers:
                self._separate.rest(index, every, q, x)
        return x, q, self._end(every, q, x) if whole else x

    def _end(self, queries: Queries, q: Floats, x: Floats) -> Floats:
        """Computes the rest of the last layer and the final norm."""
        weights = self._weights
        self._separate.rest(weights.config.layers - 1, queries, q, x)
        return self._separate.normed(x, weights.norm, weights.norm_bias)

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
        adapt_embedding(rows.adapters, rows.tokens, self._scratch.take("x", count), config.embedding_scale)
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
        x, q, normed = (self._scratch.take(name, count) for name in ("x", "q", "normed"))
        return x, q, normed if whole else x

    def _adapted(self, rows: Rows) -> tuple[int | None, int | None]:
        """Addresses of the rows that have adapters, and of scratch memory that only steps with such rows need."""
        if rows.adapted is None:
            return None, None
        both = self._scratch.take("gate_up", len(rows.tokens), self._weights.config.gate_up_width)
        return rows.adapted.address, address(both)

    def _new_step(self, count: int) -> kernels.layer.LayerStep:
        """Makes scratch memory for so many rows, at least twice as much as before, and a step that names its
        addresses."""
        config = self._weights.config
        self._room = max(count, 2 * self._room)
        scratch = {
            "x": self._scratch.take("x", self._room, config.hidden),
            "normed": self._scratch.take("normed", self._room, config.hidden),
            "qkv": self._scratch.take("qkv", self._room, config.qkv_width),
            "q": self._scratch.take("q", self._room, config.heads, config.head_dim),
            "attended": self._scratch.take("attended", self._room, config.q_width),
            "gated": self._scratch.take("gated", self._room, config.ffn),
        }
        return native_step(self._weights, self._pages, scratch)

    def logits(self, hidden: Floats, adapters: RowsOfAdapters = ()) -> Floats:
        """[rows, vocab]; valid until the next call. `adapters`: those of these rows."""
        config = self._weights.config
        out = self._scratch.take("logits", len(hidden), config.vocab)
        if len(hidden):
            multiply_head(self._product, hidden, self._weights.head, adapters, out, self._scratch)
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
            logits=address(self._scratch.take("logits", len(pieces), config.vocab)),
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

    def _sampled_only(self, rows: Rows, q: Floats, x: Floats) -> tuple[Queries, Floats, Floats]:
        config, count = self._weights.config, len(rows.sampled)
        few_q = self._scratch.take("few_q", count, config.heads, config.head_dim)
        few_x = self._scratch.take("few_x", count, config.hidden)
        np.take(q, rows.sampled, axis=0, out=few_q, mode="clip")
        np.take(x, rows.sampled, axis=0, out=few_x, mode="clip")
        return Queries.sampled(rows), few_q, few_x
