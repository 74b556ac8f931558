"""Lets a plan be handed over before the step in front of it has ended: `Piece.follows`.

Such a piece's one token is what its request's one sampled row of the step before yields. On a GPU it is put in place on
the device; here it is put in place when its step's turn comes, so a plan means the same to every runner."""

from collections.abc import Sequence
from dataclasses import replace

from engine.plan import Piece, Plan, Sampled


class Following:
    """What the last step yielded, by the request's key. Belongs to the runner's thread."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def settle(self, plan: Plan) -> Plan:
        """The same plan with all its tokens."""
        if not any(piece.follows for piece in plan.pieces):
            return plan
        return replace(plan, pieces=tuple(self._settled(piece) for piece in plan.pieces))

    def remember(self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]]) -> None:
        self._last = {
            piece.key: drawn[0].token for piece, drawn in zip(pieces, sampled, strict=True) if len(drawn) == 1
        }

    def _settled(self, piece: Piece) -> Piece:
        if not piece.follows:
            return piece
        if piece.key not in self._last:
            raise ValueError(
                f"piece {piece.key} follows a token, but the step before did not sample exactly one for it"
            )
        return replace(piece, tokens=(self._last[piece.key],), follows=False)
