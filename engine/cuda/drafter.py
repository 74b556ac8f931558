"""The draft model on the device: carries out what drafting.py decides, into its own layers of the same pages.

What it reads and where its tokens will stand the host knows once the model's step is read. The rounds then follow each
other on the device: each finds the tokens of the one before there, and all that was proposed comes back at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.cuda.step_stream import Lane
from engine.cuda.steps import Steps, nothing
from engine.drafting import Proposed, Reading, has_open, open_readings, proposed, settled_text
from engine.model.rows import Limits
from engine.plan import Piece, Sampled

_USUAL_ROWS = 2  # the token that the step yielded, and before it the last proposal if it was accepted


@dataclass(frozen=True, slots=True)
class Proposing:
    """Rounds that are on their way."""

    pieces: tuple[Piece, ...]  # the plan's
    readings: tuple[Reading, ...]
    rounds: torch.Tensor  # on the host [rounds, readings that propose], valid once the launch's mark is reached

    def read(self) -> Proposed:
        return proposed(self.pieces, self.readings, self.rounds.tolist())


class DeviceDrafter:
    def __init__(self, steps: Steps, limits: Limits, lane: Lane, *, layers: tuple[int, int]) -> None:
        """`layers`: the first, counted behind the model's, and how many; they are told together."""
        self.steps, self.layers = steps, layers
        self._limits, self._lane = limits, lane

    def read(self, pieces: Sequence[Piece]) -> bool:
        """The text that is settled before the step. True: all of the step's is, so the layers can be told."""
        self._read(settled_text(pieces))
        return not has_open(pieces)

    def propose(self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]]) -> Proposing:
        """Reads what the step made of the other pieces and proposes behind each one's last token."""
        readings = open_readings(pieces, sampled, self._limits)
        asking = [_asking(one.rows, key) for key, one in enumerate(readings) if one.propose]
        wanted = [one.propose for one in readings if one.propose]
        texts = [one.rows for one in readings if not one.propose]
        texts += [_all_but_last(one) for one in asking if len(one.tokens) > _USUAL_ROWS]
        self._read(texts)  # what there is to catch up goes first, so that all rounds are of forms that come again
        first = [_last_row(one) if len(one.tokens) > _USUAL_ROWS else one for one in asking]
        return Proposing(tuple(pieces), tuple(readings), self._rounds(first, wanted))

    def _read(self, texts: Sequence[Piece]) -> None:
        if texts:
            self.steps.launch(texts, nothing, comes_again=False)

    def _rounds(self, first: Sequence[Piece], wanted: Sequence[int]) -> torch.Tensor:
        """The tokens of each round: who drops out is always the last. The last one proposed is not read."""
        shape = (max(wanted, default=0), len(first))
        said = torch.zeros(shape, dtype=torch.int32, device=self._lane.device)
        for number in range(shape[0]):
            asking = [one for one, count in zip(first, wanted, strict=True) if count > number]
            self.steps.launch([_later(one, number) for one in asking], nothing, comes_again=True)
            said[number, : len(asking)].copy_(self.steps.tokens(len(asking)))
        host = self._lane.host_words(said.numel()).view(shape)
        return host.copy_(said, non_blocking=True)


def _asking(rows: Piece, key: int) -> Piece:
    """Under a key of its own in these rounds. Nobody looks at the draft's logprobs."""
    assert rows.sampling is not None
    return replace(rows, key=key, sampling=replace(rows.sampling, top_logprobs=None))


def _all_but_last(piece: Piece) -> Piece:
    """Only read."""
    return Piece(piece.key, piece.tokens[:-1], piece.start, piece.pages)


def _last_row(piece: Piece) -> Piece:
    return replace(piece, tokens=piece.tokens[-1:], start=piece.stop - 1)


def _later(piece: Piece, rounds: int) -> Piece:
    """What it asks so many rounds later: the token of the round before is found on the device."""
    if not rounds:
        return piece
    start, position = piece.stop - 1 + rounds, piece.position + rounds
    return replace(piece, tokens=(0,), start=start, position=position, follows=True)
