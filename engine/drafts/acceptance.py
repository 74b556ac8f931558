"""The one rule by which drafts are accepted, and how far a step moves a request.

A piece's sampled rows are those of the last token and of the drafts behind it. Each row samples, with the noise of its
position, the token that the request really emits behind it. A draft is accepted only when it is that very token, so the
text is the same with and without drafts. Acceptance stops at the first draft that differs, and at a token that ends the
request."""

from collections.abc import Sequence

from engine.step.plan import Piece, Sampled
from mesh.messages.jobs import End


def accepted(piece: Piece, sampled: Sequence[Sampled]) -> int:
    """How many of the piece's drafts are accepted. The request emits `sampled[: accepted + 1]` in this step."""
    drafts = piece.tokens[len(piece.tokens) - piece.sampled + 1 :]
    for index, (draft, row) in enumerate(zip(drafts, sampled, strict=False)):
        if row.token != draft or ends(piece, index, row.token):
            return index
    return len(drafts)


def ends(piece: Piece, index: int, token: int) -> bool:
    """True: the request ends with `token`, which the piece's sampled row `index` yields."""
    return piece.sampling is not None and piece.sampling.end(piece.position + index, token) is not End.NONE


def next_slot(piece: Piece, accepted: int) -> int:
    """The slot behind the accepted text, which the newest emitted token takes in the next step. After the step the
    draft model has read all slots before it and, if it proposed, those of the new token and of all proposals but the
    last."""
    return piece.stop - max(piece.sampled - 1, 0) + accepted
