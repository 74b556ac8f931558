"""One model's steps on a device: a step's inputs go there as one block, it runs as a graph or launch by launch, and
what it yields stays in another block, where the next step finds the tokens that it follows (`Piece.follows`).

The runner has one of these for the model and one for its draft; both launch from one thread into one stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from engine.cuda.forward import DeviceForward
from engine.cuda.graphs import Graphs
from engine.cuda.inputs import Words, fill, view
from engine.cuda.step_shape import StepShape, in_order, input_places, output_places, padded, shape_of
from engine.cuda.step_stream import StepStream
from engine.model.rows import RowLimits
from engine.model.weights import Floats
from engine.step.layer_groups import LayerWritten
from engine.step.plan import Piece, Sampled

_FIRST_WORDS = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CudaStep:
    """A step that was launched."""

    order: tuple[int, ...]  # for each piece of the step, its index among the caller's pieces
    pieces: tuple[Piece, ...]  # in the step's order
    shape: StepShape

    def read(self, results: torch.Tensor) -> tuple[tuple[Sampled, ...], ...]:
        """The sampled tokens, in the caller's order, from results that have arrived on the host."""
        return _restored(self.order, _read(self, results.numpy()))


class Steps:
    def __init__(
        self, forward: DeviceForward, limits: RowLimits, stream: StepStream, *, max_batch: int, graphs: bool = True
    ) -> None:
        self.graphs = Graphs(stream.device, enabled=graphs)
        self._forward, self._limits, self._stream, self._max_batch = forward, limits, stream, max_batch
        with (
            stream.current()
        ):  # so torch gives the memory of an outgrown block to no other stream, which would not wait
            self._words = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=stream.device)
            self._results = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=stream.device)
        self._last: dict[int, int] = {}  # key -> place of its only token among those that the last step sampled

    def launch(self, pieces: Sequence[Piece], written: LayerWritten, *, comes_again: bool) -> CudaStep:
        """`comes_again`: steps of this shape come often enough to be worth a graph."""
        order, ordered, exact = self._ordered(pieces)
        shape = padded(exact, max_batch=self._max_batch) if comes_again else None
        used = shape or exact
        self._upload(used, ordered)
        self.graphs.run(shape, lambda: self._forward.step(used, self._words, self._results, written))
        self._last = _single_tokens(ordered)
        return CudaStep(order, ordered, used)

    def fetch(self, step: CudaStep) -> torch.Tensor:
        """Starts the copy of the step's results to the host: they are there when the stream's next mark is reached. The
        step must be the last one launched."""
        count = output_places(step.shape)[1]
        results = self._stream.host_words(count)
        return results.copy_(self._results[:count], non_blocking=True)

    def tokens(self, count: int) -> torch.Tensor:
        """The first tokens that the last step sampled, on the device. The next step overwrites them."""
        return self._results[:count]

    def logits(self, pieces: Sequence[Piece]) -> tuple[Floats, ...]:
        """The logits of each piece's sampled rows, [sampled, vocab]. Waits for the device."""
        order, ordered, shape = self._ordered(pieces)
        self._upload(shape, ordered)
        logits = self._forward.logits(shape, self._words, self._results).cpu().numpy()
        ends = np.cumsum([piece.sampled for piece in ordered])
        return _restored(order, np.split(logits, ends[:-1]))

    def _ordered(self, pieces: Sequence[Piece]) -> tuple[tuple[int, ...], tuple[Piece, ...], StepShape]:
        order = tuple(in_order(pieces))
        shape = shape_of(pieces, page_tokens=self._limits.page_tokens, context=self._limits.context)
        return order, tuple(pieces[place] for place in order), shape

    def _upload(self, shape: StepShape, pieces: Sequence[Piece]) -> None:
        _, count = input_places(shape, self._limits.vocab)
        host = self._stream.host_words(count)
        words: Words = host.numpy()
        fill(words, shape, pieces, self._limits, last=self._last)
        self._grow(count, output_places(shape)[1])
        self._words[:count].copy_(host, non_blocking=True)

    def _grow(self, words: int, results: int) -> None:
        """Replaces a block that is too small by a larger one. Graphs that name the old block are dropped."""
        if words > len(self._words):
            self._words = torch.zeros(2 * words, dtype=torch.int32, device=self._words.device)
            self.graphs.forget()
        if results > len(self._results):
            grown = torch.zeros(2 * results, dtype=torch.int32, device=self._results.device)
            grown[: len(self._results)].copy_(self._results)
            self._results = grown
            self.graphs.forget()


def _single_tokens(pieces: Sequence[Piece]) -> dict[int, int]:
    """For each request that samples exactly one row, the place of its token among those of the step, by key."""
    places, at = dict[int, int](), 0
    for piece in pieces:
        if piece.sampled == 1:
            places[piece.key] = at
        at += piece.sampled
    return places


def _read(step: CudaStep, words: Words) -> list[tuple[Sampled, ...]]:
    """The sampled tokens of each piece, in the step's order."""
    places, _ = output_places(step.shape)
    found = {name: view(words, place) for name, place in places.items()}
    tokens, logprobs = found["tokens"].tolist(), found["logprobs"].tolist()
    read, at = list[tuple[Sampled, ...]](), 0
    for piece in step.pieces:
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
    """Brings values from the step's order into the caller's."""
    placed = sorted(zip(order, values, strict=True), key=lambda pair: pair[0])
    return tuple(value for _, value in placed)
