"""Which ids each sampled row of a step may not take, because a grammar forbids them: from `engine/constraint.py` to
the sampler.

Masks are computed beside the step. `taken` looks at them once, when the logits are there. A piece whose masks are late
then is not sampled: its request sits out and comes again with the next step."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan import Piece

Ints = NDArray[np.int32]
Banned = tuple[Ints, Ints]  # ids of all rows one after the other, and where those of each row begin [rows + 1]
NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Masks:
    """The grammar's part in one piece: what its rows may not sample, and what must follow."""

    banned: tuple[Ints, ...]  # for each row, the ids that it may not sample
    forced: tuple[int, ...] = ()  # the only text that can follow the last row's input, as tokens


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The masks of one piece, on their way."""

    emitted: int  # tokens of the text that they stand behind
    drafts: tuple[int, ...]
    result: "Future[Masks]"
    certain: bool = False  # the grammar leaves no choice but these drafts

    def take(self) -> Masks | None:
        """The masks; None while they are not there, or if there can be none."""
        return self.result.result() if self.result.done() and self.result.exception() is None else None

    @property
    def late(self) -> bool:
        return not self.result.done()

    @property
    def fault(self) -> str | None:
        """Why there are no masks and never will be."""
        error = self.result.exception() if self.result.done() else None
        return None if error is None else str(error) or type(error).__name__


def taken(pieces: Sequence[Piece]) -> list[Masks | None]:
    """The masks of the pieces that are sampled and have any."""
    return [piece.masks.take() if piece.masks is not None and piece.sampled else None for piece in pieces]


def is_late(piece: Piece, masks: Masks | None) -> bool:
    return piece.masks is not None and piece.sampled > 0 and masks is None


def add_bans(before: Banned | tuple[None, None], pieces: Sequence[Piece], found: Sequence[Masks | None]) -> Banned:
    """The banned ids of every sampled row: those of `before`, and those of the row's mask."""
    masks = [row for piece, each in zip(pieces, found, strict=True) for row in _rows(piece, each)]
    ids, starts = before
    if ids is not None and starts is not None:
        own = np.split(ids, starts[1:-1])
        masks = [np.concatenate(pair) for pair in zip(own, masks, strict=True)]
    return np.concatenate(masks), np.cumsum([0, *map(len, masks)]).astype(np.int32)


def _rows(piece: Piece, masks: Masks | None) -> tuple[Ints, ...]:
    return (NONE,) * piece.sampled if masks is None else masks.banned[: piece.sampled]
