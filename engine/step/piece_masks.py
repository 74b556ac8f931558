"""The masks of a piece of a step: which ids its rows may not take, because a grammar forbids them.

`engine/step/constraint.py` computes them beside the step; `engine/step/masks.py` applies them to the rows that are
sampled."""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


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
