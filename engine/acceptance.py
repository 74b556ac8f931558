"""How far a step moved a request: the one rule by which drafts are accepted.

A piece's sampled rows are the last token and the drafts behind it; the row before a draft yields what the request
really says there, by the noise of that position. A draft is accepted only when it is that very token, so the text is
the same with and without drafts. The run ends at the first other token, or with the token that ends the request."""

from collections.abc import Sequence

from engine.plan import Piece, Sampled
from mesh.messages import End


def accepted(piece: Piece, sampled: Sequence[Sampled]) -> int:
    """How many of the piece's drafts are accepted: `sampled[: accepted + 1]` is what the request says in this step."""
    drafts = piece.tokens[len(piece.tokens) - piece.sampled + 1 :]
    for index, (draft, one) in enumerate(zip(drafts, sampled, strict=False)):
        if one.token != draft or ends(piece, index, one.token):
            return index
    return len(drafts)


def ends(piece: Piece, index: int, token: int) -> bool:
    """Does the request end with what the piece's sampled row `index` yields?"""
    return piece.sampling is not None and piece.sampling.end(piece.position + index, token) is not End.NONE


def next_slot(piece: Piece, accepted: int) -> int:
    """The slot behind the accepted text: that of the new token, if the piece yields one. The draft model has read all
    slots before it, and besides as many as it proposed tokens (the new token and all its proposals but the last)."""
    return piece.stop - max(piece.sampled - 1, 0) + accepted
