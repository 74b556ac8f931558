"""One model's steps on a device: a step's inputs go there as one block, it runs as a graph or launch by launch, and
what it yields stays in another block, where the next step finds the tokens that it follows (`Piece.follows`).

The runner has one of these for the model and one for its draft; both launch from one thread into one lane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from engine.cuda.form import Form, form_of, in_order, input_places, output_places, padded
from engine.cuda.forward import DeviceForward, Written
from engine.cuda.graphs import Graphs
from engine.cuda.inputs import Words, fill, view
from engine.cuda.step_stream import Lane
from engine.model.rows import Limits
from engine.model.weights import Floats
from engine.plan import Piece, Sampled

_FIRST_WORDS = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One that was launched."""

    order: tuple[int, ...]  # the caller's pieces as the step has them
    pieces: tuple[Piece, ...]  # in the step's order
    form: Form

    def read(self, results: torch.Tensor) -> tuple[tuple[Sampled, ...], ...]:
        """What it yielded, in the caller's order, from what was fetched and has arrived."""
        return _restored(self.order, _read(self, results.numpy()))


class Steps:
    def __init__(
        self, forward: DeviceForward, limits: Limits, lane: Lane, *, max_batch: int, graphs: bool = True
    ) -> None:
        self.graphs = Graphs(lane.device, enabled=graphs)
        self._forward, self._limits, self._lane, self._max_batch = forward, limits, lane, max_batch
        with lane.current():  # when a block has grown, its memory is not given to another stream that would not wait
            self._words = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=lane.device)
            self._results = torch.zeros(_FIRST_WORDS, dtype=torch.int32, device=lane.device)
        self._last: dict[int, int] = {}  # key -> which of the last step's tokens is its one

    def launch(self, pieces: Sequence[Piece], written: Written, *, comes_again: bool) -> Step:
        """`comes_again`: steps of such a form are worth a graph."""
        order, ordered, exact = self._ordered(pieces)
        form = padded(exact, max_batch=self._max_batch) if comes_again else None
        used = form or exact
        self._upload(used, ordered)
        self.graphs.run(form, lambda: self._forward.step(used, self._words, self._results, written))
        self._last = _single_tokens(ordered)
        return Step(order, ordered, used)

    def fetch(self, step: Step) -> torch.Tensor:
        """On the host; arrived when the lane's next mark is reached. The step must be the last one."""
        count = output_places(step.form)[1]
        results = self._lane.host_words(count)
        return results.copy_(self._results[:count], non_blocking=True)

    def tokens(self, count: int) -> torch.Tensor:
        """On the device: the first of those that the last step sampled. The next one overwrites them."""
        return self._results[:count]

    def logits(self, pieces: Sequence[Piece]) -> tuple[Floats, ...]:
        """Of each piece's sampled rows: [sampled, vocab]. Waits for the device."""
        order, ordered, form = self._ordered(pieces)
        self._upload(form, ordered)
        logits = self._forward.logits(form, self._words, self._results).cpu().numpy()
        ends = np.cumsum([piece.sampled for piece in ordered])
        return _restored(order, np.split(logits, ends[:-1]))

    def _ordered(self, pieces: Sequence[Piece]) -> tuple[tuple[int, ...], tuple[Piece, ...], Form]:
        order = tuple(in_order(pieces))
        form = form_of(pieces, page_tokens=self._limits.page_tokens, context=self._limits.context)
        return order, tuple(pieces[place] for place in order), form

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


def nothing(layer: int) -> None:
    """Nobody waits for these layers."""


def _single_tokens(pieces: Sequence[Piece]) -> dict[int, int]:
    """Of each key that samples exactly one row, where its token stands among the step's."""
    places, at = dict[int, int](), 0
    for piece in pieces:
        if piece.sampled == 1:
            places[piece.key] = at
        at += piece.sampled
    return places


def _read(step: Step, words: Words) -> list[tuple[Sampled, ...]]:
    """Piece by piece in the step's order."""
    places, _ = output_places(step.form)
    found = {name: view(words, place, name) for name, place in places.items()}
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
    """Values in the step's order -> in the caller's."""
    placed = sorted(zip(order, values, strict=True), key=lambda pair: pair[0])
    return tuple(value for _, value in placed)
