"""Carries out plans on a CUDA device. One thread launches, another waits for results: neither waits for the other.

A plan's inputs go to the device as one block, the step runs as a graph or launch by launch, and its tokens come back by
an asynchronous copy. Since a piece may follow the step before (`Piece.follows`) and finds its token on the device, step
N + 1 is launched before anybody has read what step N yielded. Layers are told when the device has written them."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from baton_kernels.triton import PageShape
from engine.cuda.form import Form, form_of, in_order, input_places, output_places, padded
from engine.cuda.forward import DeviceForward, Written
from engine.cuda.graphs import Graphs
from engine.cuda.inputs import Words, fill, view
from engine.cuda.lane import Lane, wait
from engine.cuda.products import Products
from engine.cuda.weights import DeviceWeights
from engine.model.rows import Limits
from engine.model.weights import Floats
from engine.plan import OnLayers, Piece, Plan, Result, Sampled

SMALL_BYTES = 128 * 1024  # less than this is not worth a message of its own
_FIRST_WORDS = 1 << 16

Mark = torch.cuda.Event | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that is on its way."""

    order: tuple[int, ...]  # the plan's pieces as the step has them
    pieces: tuple[Piece, ...]  # in the step's order
    form: Form | None  # None: it only copied pages
    results: torch.Tensor  # on the host, valid once `done` is reached
    layers: tuple[tuple[int, int, Mark], ...]
    done: Mark


class CudaRunner:
    ahead = True  # the device would wait for the host between any two steps

    def __init__(
        self,
        weights: DeviceWeights,
        *,
        pool: torch.Tensor,  # uint8, on the weights' device
        page_tokens: int,
        products: Products,
        max_batch: int = 64,  # sequences in a step that runs as a graph
        layer_group: int | None = None,
        graphs: bool = True,
    ) -> None:
        config, device = weights.config, weights.device
        shape = page_shape(weights, page_tokens)
        if pool.device != device or not pool.numel():
            raise ValueError(f"the pool has {pool.numel()} bytes on {pool.device}; give whole pages on {device}")
        pages = shape.check_pool(pool)
        self.layers, self.layout, self.page_bytes = config.layers, shape.name, shape.page_bytes
        self.graphs = Graphs(device, enabled=graphs)
        self._layer_group, self._max_batch = layer_group, max_batch
        self._row_bytes = shape.layer_bytes // page_tokens
        self._limits = Limits(config.vocab, config.context, pages, page_tokens, shape.page_bytes)
        self._pool = pool.view(pages, shape.page_bytes)
        self._forward = DeviceForward(weights, pool, shape, products)
        self._lane = Lane(device)
        self._words = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=device)
        self._results = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=device)
        self._last: dict[int, int] = {}  # key -> which of the last step's tokens is its one
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # weights and blocks were made on another stream
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._waiter = ThreadPoolExecutor(1, "waiter")

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> asyncio.Future[Result]:
        """Plans run in order; cancelling the future does not stop a step that was launched."""
        loop = asyncio.get_running_loop()
        tell: OnLayers | None = None
        if on_layers is not None:

            def tell(first: int, count: int) -> None:
                loop.call_soon_threadsafe(on_layers, first, count)

        launched = self._launcher.submit(self.launch, plan, layers=on_layers is not None)
        return asyncio.wrap_future(self._waiter.submit(self._finish_launched, launched, tell))

    def compute(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        """The step itself, in the calling thread; not while another plan runs."""
        return self.finish(self.launch(plan, layers=on_layers is not None), on_layers)

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        order, pieces = self._ordered(plan)
        form = self._form(pieces)
        with self._lane.current():
            self._upload(form, pieces)
            logits = self._forward.logits(form, self._words, self._results).cpu().numpy()
        ends = np.cumsum([piece.sampled for piece in pieces])
        return _restored(order, np.split(logits, ends[:-1]))

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows tells together: see the CPU's runner."""
        worth = -(-SMALL_BYTES // (rows * self._row_bytes))
        return self._layer_group or max(1, round(self.layers / 4), min(self.layers // 3, worth))

    def close(self) -> None:
        """Waits for the steps that were handed over."""
        self._launcher.shutdown(wait=True)
        self._waiter.shutdown(wait=True)

    # ---- in the launcher's thread

    def launch(self, plan: Plan, *, layers: bool) -> Launched:
        """Everything that the device has to do for this plan, handed over. `layers`: somebody waits for them."""
        order, pieces = self._ordered(plan)
        exact = self._form(pieces) if pieces else None
        self._check_copies(plan)
        with self._lane.current():
            for source, target in plan.copies:
                self._pool[target].copy_(self._pool[source])
            if exact is None:
                return Launched((), (), None, self._lane.host_words(0), (), self._lane.mark())
            form = None if layers else padded(exact, max_batch=self._max_batch)
            used, marks = form or exact, list[tuple[int, int, Mark]]()
            self._upload(used, pieces)
            written = self._marking(marks, self.layer_group(exact.rows)) if layers else _nothing
            self.graphs.run(form, lambda: self._forward.step(used, self._words, self._results, written))
            _, count = output_places(used)
            results = self._lane.host_words(count)
            results.copy_(self._results[:count], non_blocking=True)
            self._last = _single_tokens(pieces)
            return Launched(order, pieces, used, results, tuple(marks), self._lane.mark())

    def _ordered(self, plan: Plan) -> tuple[tuple[int, ...], tuple[Piece, ...]]:
        if any(piece.drafting for piece in plan.pieces):
            raise ValueError(
                f"step {plan.step} names a draft model; on a GPU there is none: the worker must not plan it"
            )
        order = tuple(in_order(plan.pieces))
        return order, tuple(plan.pieces[place] for place in order)

    def _form(self, pieces: Sequence[Piece]) -> Form:
        return form_of(pieces, page_tokens=self._limits.page_tokens, context=self._limits.context)

    def _check_copies(self, plan: Plan) -> None:
        for source, target in plan.copies:
            if not (0 <= source < self._limits.pages and 0 <= target < self._limits.pages):
                raise ValueError(f"step {plan.step} copies page {source} to {target} of a pool of {self._limits.pages}")

    def _upload(self, form: Form, pieces: Sequence[Piece]) -> None:
        _, count = input_places(form, self._limits.vocab)
        host = self._lane.host_words(count)
        words: Words = host.numpy()
        fill(words, form, pieces, self._limits, last=self._last)
        self._grow(count, output_places(form)[1])
        self._words[:count].copy_(host, non_blocking=True)

    def _grow(self, words: int, results: int) -> None:
        """Blocks only grow; graphs that know the old ones go with them."""
        if words > len(self._words):
            self._words = torch.zeros(2 * words, dtype=torch.int32, device=self._words.device)
            self.graphs.forget()
        if results > len(self._results):
            grown = torch.zeros(2 * results, dtype=torch.int32, device=self._results.device)
            grown[: len(self._results)].copy_(self._results)
            self._results = grown
            self.graphs.forget()

    def _marking(self, marks: list[tuple[int, int, Mark]], size: int) -> Written:
        def written(layer: int) -> None:
            if (layer + 1) % size == 0 or layer + 1 == self.layers:
                first = layer // size * size
                marks.append((first, layer + 1 - first, self._lane.mark()))

        return written

    # ---- in the waiter's thread

    def _finish_launched(self, launched: "Future[Launched]", on_layers: OnLayers | None) -> Result:
        return self.finish(launched.result(), on_layers)

    def finish(self, launched: Launched, on_layers: OnLayers | None) -> Result:
        """What a step on its way yields, once the device is through with it."""
        for first, count, mark in launched.layers:
            wait(mark)
            if on_layers is not None:
                on_layers(first, count)
        wait(launched.done)
        if launched.form is None:
            return Result(())
        return Result(_restored(launched.order, _read(launched)))


def page_shape(weights: DeviceWeights, page_tokens: int) -> PageShape:
    config = weights.config
    return PageShape(config.layers, config.kv_heads, config.head_dim, page_tokens)


def _nothing(layer: int) -> None:
    """Nobody waits for these layers."""


def _single_tokens(pieces: Sequence[Piece]) -> dict[int, int]:
    """Of each key that samples exactly one row, where its token stands among the step's."""
    places, at = dict[int, int](), 0
    for piece in pieces:
        if piece.sampled == 1:
            places[piece.key] = at
        at += piece.sampled
    return places


def _read(launched: Launched) -> list[tuple[Sampled, ...]]:
    """Piece by piece in the step's order."""
    assert launched.form is not None
    words: Words = launched.results.numpy()
    places, _ = output_places(launched.form)
    found = {name: view(words, place, name) for name, place in places.items()}
    tokens, logprobs = found["tokens"].tolist(), found["logprobs"].tolist()
    read, at = list[tuple[Sampled, ...]](), 0
    for piece in launched.pieces:
        most = (piece.sampling.top_logprobs or 0) if piece.sampling else 0
        rows = range(at, at + piece.sampled)
        read.append(tuple(_sampled(tokens[row], logprobs[row], found, row, most) for row in rows))
        at += piece.sampled
    return read


def _sampled(token: int, logprob: float, found: Mapping[str, Any], row: int, most: int) -> Sampled:
    if not most:
        return Sampled(token, logprob)
    return Sampled(
        token, logprob, tuple(found["top_ids"][row, :most].tolist()), tuple(found["top_logprobs"][row, :most].tolist())
    )


def _restored(order: Sequence[int], values: Sequence[T]) -> tuple[T, ...]:
    """Values in the step's order -> in the plan's."""
    placed = sorted(zip(order, values, strict=True), key=lambda pair: pair[0])
    return tuple(value for _, value in placed)
