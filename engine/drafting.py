"""The draft model's share of a step, decided: which text it reads, when, and how much it proposes behind it.

Step 4 and 7 of a request's life; nothing is computed here, `drafter.py` and `cuda/drafter.py` carry it out. Text that
is settled whatever the model samples (a prompt's chunk) is read before the model's pass, so that its pages travel
meanwhile. Behind what a step yields the draft goes on alone, a token per round, all requests at once, with the very
noise, temperature and filters with which the model will sample those positions: so it agrees as often as it can.
Nothing here changes a token, and what rejected proposals leave in the pages lies behind the text, where it is written
again before anything reads it."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.acceptance import accepted, ends, next_slot
from engine.model.rows import Limits
from engine.plan import Drafting, Piece, Sampled

Proposed = tuple[tuple[int, ...], ...]  # behind each piece's last token


@dataclass(frozen=True, slots=True)
class Reading:
    """What the draft model does for one piece, once the step's tokens are known."""

    index: int  # of the piece
    rows: Piece  # the text that it reads; sampled if it proposes
    propose: int


def settled_text(pieces: Sequence[Piece]) -> list[Piece]:
    """What it reads before the step."""
    drafted = [(piece, piece.drafting) for piece in pieces if piece.drafting is not None and _is_settled(piece)]
    texts = [_text(piece, drafting, piece.stop) for piece, drafting in drafted]
    return [text for text in texts if text is not None]


def has_open(pieces: Sequence[Piece]) -> bool:
    """Is there something to read or propose that depends on what the step samples?"""
    return any(_is_open(piece) for piece in pieces)


def open_readings(pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]], limits: Limits) -> list[Reading]:
    """What it does behind the step, those that propose most first: who drops out of the rounds is always the last."""
    behind = [_reading(i, piece, sampled[i], limits) for i, piece in enumerate(pieces) if _is_open(piece)]
    return sorted((one for one in behind if one is not None), key=lambda one: -one.propose)


def proposed(pieces: Sequence[Piece], readings: Sequence[Reading], rounds: Sequence[Sequence[int]]) -> Proposed:
    """From the tokens of each round, in the order of `readings`, to those behind each piece."""
    behind: list[tuple[int, ...]] = [()] * len(pieces)
    for row, one in enumerate(readings):
        behind[one.index] = tuple(tokens[row] for tokens in rounds[: one.propose])
    return tuple(behind)


def _reading(index: int, piece: Piece, sampled: Sequence[Sampled], limits: Limits) -> Reading | None:
    assert piece.drafting is not None
    count = accepted(piece, sampled)
    slot, token = next_slot(piece, count), sampled[count].token
    propose = 0 if ends(piece, count, token) else min(piece.drafting.propose, _room(piece, slot, count, limits))
    if propose <= 0:
        rows = _text(piece, piece.drafting, slot)
        return None if rows is None else Reading(index, rows, 0)
    first = min(piece.drafting.start, slot)
    before = _tokens(piece, piece.drafting, first, slot)
    position = piece.position + count + 1
    rows = Piece(piece.key, (*before, token), first, piece.pages, 1, position, piece.sampling)
    return Reading(index, rows, propose)


def _room(piece: Piece, slot: int, count: int, limits: Limits) -> int:
    """Proposals behind the token at `slot` that are of use: within the pages, the context and what was asked for.
    The model's next step yields a token more than it verifies."""
    assert piece.sampling is not None
    in_pages = len(piece.pages) * limits.page_tokens - slot
    left = piece.sampling.max_tokens - (piece.position + count + 1)
    return min(in_pages, limits.context - 1 - slot, left - 1)


def _is_settled(piece: Piece) -> bool:
    """It is drafted, no row depends on what the step samples, and nothing is to be proposed behind it."""
    return piece.drafting is not None and (piece.sampled == 0 or (piece.sampled == 1 and piece.drafting.propose == 0))


def _is_open(piece: Piece) -> bool:
    return piece.drafting is not None and not _is_settled(piece)


def _text(piece: Piece, drafting: Drafting, stop: int) -> Piece | None:
    """What the draft has to read of the accepted text in front of slot `stop`; None: nothing."""
    first = min(drafting.start, stop)
    tokens = _tokens(piece, drafting, first, stop)
    return Piece(piece.key, tokens, first, piece.pages) if tokens else None


def _tokens(piece: Piece, drafting: Drafting, first: int, stop: int) -> tuple[int, ...]:
    if first < piece.start:
        return drafting.unread + piece.tokens[: stop - piece.start]
    return piece.tokens[first - piece.start : stop - piece.start]
