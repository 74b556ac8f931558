"""Which ids each sampled row of a step may not take, because a grammar forbids them: from `engine/step/constraint.py`
to the sampler.

Masks are computed beside the step. `taken` looks at them once, when the logits are there. A piece whose masks are late
then is not sampled: its request sits out and comes again with the next step."""

from collections.abc import Sequence

import numpy as np

from engine.step.piece_masks import Ints, Masks
from engine.step.plan import Piece

Banned = tuple[Ints, Ints]  # ids of all rows one after the other, and where those of each row begin [rows + 1]
NONE = np.empty(0, np.int32)


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
