"""The draft model on the device: it carries out what `engine/drafts/drafting.py` decides. Its keys and values stand in
layers of their own in the same pages.

Once the host has read the model's step, it knows what the draft reads and which slots its proposals take. It launches
all rounds at once: each round finds the tokens of the one before on the device, and all proposals come back
together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.cuda.step_stream import StepStream
from engine.cuda.steps import Steps
from engine.drafts.drafting import Proposed, Reading, has_open, open_readings, proposed, settled_text
from engine.model.rows import RowLimits
from engine.step.layer_groups import unreported
from engine.step.plan import Piece, Sampled

_USUAL_ROWS = 2  # the token that the step yielded, and before it the last proposal if it was accepted


@dataclass(frozen=True, slots=True)
class Proposing:
    """Rounds that were handed to the device."""

    pieces: tuple[Piece, ...]  # pieces of the plan
    readings: tuple[Reading, ...]
    rounds: torch.Tensor  # on the host [rounds, readings that propose], valid once the launch's mark is reached
    vocab: int

    def read(self) -> Proposed:
        return proposed(self.pieces, self.readings, self.rounds.tolist(), self.vocab)


class DeviceDrafter:
    def __init__(self, steps: Steps, limits: RowLimits, stream: StepStream, *, layers: tuple[int, int]) -> None:
        """`layers`: the draft's first layer, counted behind the model's, and how many it has. They are reported at
        once."""
        self.steps, self.layers = steps, layers
        self._limits, self._stream = limits, stream

    def read(self, pieces: Sequence[Piece]) -> bool:
        """Reads the text that is settled before the step. True: there is no other, so the layers can be reported."""
        self._read(settled_text(pieces, self._limits))
        return not has_open(pieces)

    def propose(self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]]) -> Proposing:
        """Reads what the step made of the other pieces and proposes behind each one's last token."""
        readings = open_readings(pieces, sampled, self._limits)
        asking = [_proposing_piece(one.rows, key) for key, one in enumerate(readings) if one.propose]
        wanted = [one.propose for one in readings if one.propose]
        texts = [one.rows for one in readings if not one.propose]
        texts += [_all_but_last(one) for one in asking if len(one.tokens) > _USUAL_ROWS]
        self._read(texts)  # what there is to catch up goes first, so that the rounds have shapes that come again
        first = [_last_row(one) if len(one.tokens) > _USUAL_ROWS else one for one in asking]
        return Proposing(tuple(pieces), tuple(readings), self._rounds(first, wanted), self._limits.vocab)

    def _read(self, texts: Sequence[Piece]) -> None:
        if texts:
            self.steps.launch(texts, unreported, comes_again=False)

    def _rounds(self, first: Sequence[Piece], wanted: Sequence[int]) -> torch.Tensor:
        """The tokens of each round. Pieces that want fewer rounds stand behind the others. The last proposal is not
        read."""
        shape = (max(wanted, default=0), len(first))
        proposals = torch.zeros(shape, dtype=torch.int32, device=self._stream.device)
        for number in range(shape[0]):
            asking = [one for one, count in zip(first, wanted, strict=True) if count > number]
            self.steps.launch([_later(one, number) for one in asking], unreported, comes_again=True)
            proposals[number, : len(asking)].copy_(self.steps.tokens(len(asking)))
        host = self._stream.host_words(proposals.numel()).view(shape)
        return host.copy_(proposals, non_blocking=True)


def _proposing_piece(rows: Piece, key: int) -> Piece:
    """The rows under a key of their own for these rounds, without best logprobs: the draft's are not used."""
    assert rows.sampling is not None
    return replace(rows, key=key, sampling=replace(rows.sampling, top_logprobs=None))


def _all_but_last(piece: Piece) -> Piece:
    """The rows before the last one, which are only read."""
    return Piece(piece.key, piece.tokens[:-1], piece.start, piece.pages)


def _last_row(piece: Piece) -> Piece:
    return replace(piece, tokens=piece.tokens[-1:], start=piece.stop - 1)


def _later(piece: Piece, rounds: int) -> Piece:
    """The piece so many rounds later. Its token is that of the round before, which is on the device."""
    if not rounds:
        return piece
    start, position = piece.stop - 1 + rounds, piece.position + rounds
    return replace(piece, tokens=(0,), start=start, position=position, follows=True)
