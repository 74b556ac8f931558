"""Fills in tokens that were not sampled yet when their plan was made (`Piece.follows`).

A plan may be handed over before the step in front of it has ended. A piece that follows then has one row whose token is
the one that its request samples in that step. The CPU's runner fills it in here when the plan's turn comes; on a GPU it
is filled in on the device. So a plan means the same to every runner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.step.plan import Piece, Plan, Sampled


class FollowedTokens:
    """The token that each request sampled in the last step, by the request's key. Belongs to the runner's thread."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def fill_in(self, plan: Plan) -> Plan:
        """The same plan, in which every piece names all its tokens."""
        if not any(piece.follows for piece in plan.pieces):
            return plan
        return replace(plan, pieces=tuple(self._filled(piece) for piece in plan.pieces))

    def remember(self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]]) -> None:
        """Keeps the token of each piece that sampled exactly one row; no other piece can be followed."""
        self._last = {
            piece.key: drawn[0].token for piece, drawn in zip(pieces, sampled, strict=True) if len(drawn) == 1
        }

    def _filled(self, piece: Piece) -> Piece:
        return replace(piece, tokens=(followed(piece, self._last),), follows=False) if piece.follows else piece


def followed(piece: Piece, last: Mapping[int, int]) -> int:
    """The entry of the last step that the piece follows: its token here, the place of its token on a GPU."""
    if piece.key not in last:
        raise ValueError(f"piece {piece.key} follows a token, but the step before did not sample exactly one for it")
    return last[piece.key]
