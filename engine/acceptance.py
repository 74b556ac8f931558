"""The one rule of speculation: a draft is accepted exactly when it equals what the model itself sampled there.

The engine reads on behind what is accepted, decode emits it: both ask here, so they can never disagree."""

from collections.abc import Sequence

from engine.plan import Piece, Sampled


def accepted(piece: Piece, sampled: Sequence[Sampled]) -> int:
    """How many of the piece's drafts are the model's own words: those before the first that is not."""
    drafts = piece.tokens[len(piece.tokens) - len(sampled) + 1 :]
    pairs = zip(drafts, sampled, strict=False)
    return next((i for i, (draft, best) in enumerate(pairs) if draft != best.token), len(drafts))
