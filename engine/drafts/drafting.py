"""Decides what the draft model does in a step: which text it reads, when, and how many tokens it proposes.

Steps 4 and 7 of a request's life. Nothing is computed here: `engine/cpu/drafter.py` and `engine/cuda/drafter.py` carry
it out. Text that does not depend on what the model samples (a prompt's chunk) is settled: the draft reads it before the
model's pass, so that its pages can be sent meanwhile. Behind the tokens that a step yields, the draft proposes a token
per round for all requests at once. It samples with the same noise, temperature and filters with which the model will
sample those positions, so they agree as often as possible. Proposals never change a token, and the keys and values of
rejected ones stand behind the text, where they are written again before anything reads them. Behind the draft's own
context it neither reads nor proposes: `limits` are those within which both models compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from engine.drafts.acceptance import accepted, ends, next_slot
from engine.model.rows import RowLimits
from engine.step.plan import Drafting, Piece, Sampled

Proposed = tuple[tuple[int, ...], ...]  # the proposals behind each piece's last token


@dataclass(frozen=True, slots=True)
class Reading:
    """Work of the draft model for one piece, once the step's tokens are known."""

    index: int  # index of the piece
    rows: Piece  # the text that the draft reads; its last row is sampled if the draft proposes
    propose: int  # tokens to propose


def settled_text(pieces: Sequence[Piece], limits: RowLimits) -> list[Piece]:
    """The text that the draft model reads before the model's pass."""
    drafted = [(piece, piece.drafting) for piece in pieces if piece.drafting is not None and _is_settled(piece)]
    texts = [_text(piece, drafting, piece.stop, limits) for piece, drafting in drafted]
    return [text for text in texts if text is not None]


def has_open(pieces: Sequence[Piece]) -> bool:
    """True: for some piece, what the draft reads or proposes depends on what the step samples."""
    return any(_is_open(piece) for piece in pieces)


def open_readings(pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]], limits: RowLimits) -> list[Reading]:
    """Readings that the draft does once the step is sampled. Those that propose most come first, so that the pieces of
    a later round are always the first ones of the round before."""
    behind = [_reading(i, piece, sampled[i], limits) for i, piece in enumerate(pieces) if _is_open(piece)]
    return sorted((reading for reading in behind if reading is not None), key=lambda reading: -reading.propose)


def proposed(
    pieces: Sequence[Piece], readings: Sequence[Reading], rounds: Sequence[Sequence[int]], vocab: int
) -> Proposed:
    """Sorts the tokens of each round, in the order of `readings`, by piece. Proposals end before the first one that
    the model has no row for: a draft may pad its vocabulary further than the model."""
    behind: list[tuple[int, ...]] = [()] * len(pieces)
    for row, reading in enumerate(readings):
        tokens = (tokens[row] for tokens in rounds[: reading.propose])
        behind[reading.index] = tuple(takewhile(lambda token: token < vocab, tokens))
    return tuple(behind)


def _reading(index: int, piece: Piece, sampled: Sequence[Sampled], limits: RowLimits) -> Reading | None:
    assert piece.drafting is not None
    if not sampled:
        return None  # its masks were late: the same rows come again
    count = accepted(piece, sampled)
    slot, token = next_slot(piece, count), sampled[count].token
    propose = 0 if ends(piece, count, token) else min(piece.drafting.propose, _room(piece, slot, count, limits))
    if propose <= 0:
        rows = _text(piece, piece.drafting, slot, limits)
        return None if rows is None else Reading(index, rows, 0)
    first = min(piece.drafting.start, slot)
    before = _tokens(piece, piece.drafting, first, slot)
    position = piece.position + count + 1
    rows = Piece(piece.key, (*before, token), first, piece.pages, 1, position, piece.sampling)
    return Reading(index, rows, propose)


def _room(piece: Piece, slot: int, count: int, limits: RowLimits) -> int:
    """How many proposals behind the token at `slot` can be of use: those within the pages, the context and max_tokens.
    The model's next step yields one token more than it verifies."""
    assert piece.sampling is not None
    in_pages = len(piece.pages) * limits.page_tokens - slot
    left = piece.sampling.max_tokens - (piece.position + count + 1)
    return min(in_pages, limits.context - 1 - slot, left - 1)


def _is_settled(piece: Piece) -> bool:
    """True: the draft only reads this piece, and what it reads does not depend on what the step samples."""
    return piece.drafting is not None and (piece.sampled == 0 or (piece.sampled == 1 and piece.drafting.propose == 0))


def _is_open(piece: Piece) -> bool:
    return piece.drafting is not None and not _is_settled(piece)


def _text(piece: Piece, drafting: Drafting, stop: int, limits: RowLimits) -> Piece | None:
    """The accepted text before slot `stop` that the draft has not read and can read; None: there is none."""
    stop = min(stop, limits.context)
    first = min(drafting.start, stop)
    tokens = _tokens(piece, drafting, first, stop)
    return Piece(piece.key, tokens, first, piece.pages) if tokens else None


def _tokens(piece: Piece, drafting: Drafting, first: int, stop: int) -> tuple[int, ...]:
    if first < piece.start:
        return (drafting.unread + piece.tokens)[: stop - first]
    return piece.tokens[first - piece.start : stop - piece.start]
