"""A step's sizes and where its arrays lie in the one block of words that goes to the device.

Rows of sequences with few rows come first: their attention gives every part of a long text a program of its own. Steps
that only decode, or verify drafts, are padded to a few forms, each of which is captured as a CUDA graph once; what
fills a form up are rows without a slot, which touch no page and whose results nobody reads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from engine.plan import Piece

MOST_FEW = 16  # rows of a sequence whose attention is split
MOST_TOPS = 20  # best logprobs that a row may want
_FIRST_WIDTH_TOKENS, _WIDER = 1024, 4  # block tables are as wide as one of a few sizes
_ALIGN_WORDS = 4  # 16 bytes, so that a kernel is compiled once


@dataclass(frozen=True, slots=True)
class Form:
    rows: int
    few: int  # leading rows, of sequences with at most `most` rows each
    most: int
    sequences: int
    few_sequences: int  # leading ones
    longest: int  # rows of the longest other sequence; 0: there is none
    width: int  # pages of a block table
    sampled: int  # rows; all of them, or some that are named
    tops: bool  # somebody wants the best logprobs
    masked: bool  # somebody must not sample some ids

    def __post_init__(self) -> None:
        sound = 0 <= self.sampled <= self.rows and 0 <= self.few_sequences <= self.few <= self.rows
        if not sound or (self.few < self.rows) != (self.longest > 0) or self.sequences > self.rows:
            raise ValueError(f"a step cannot have this form: {self}")


def in_order(pieces: Sequence[Piece]) -> list[int]:
    """The places of the pieces, those of few rows first."""
    return sorted(range(len(pieces)), key=lambda i: len(pieces[i].tokens) > MOST_FEW)


def form_of(pieces: Sequence[Piece], *, page_tokens: int, context: int) -> Form:
    """Of exactly these pieces, unpadded."""
    counts = [len(piece.tokens) for piece in pieces]
    few = [count for count in counts if count <= MOST_FEW]
    wishes = [piece.sampling for piece in pieces if piece.sampling is not None]
    return Form(
        rows=sum(counts),
        few=sum(few),
        most=max(few, default=1),
        sequences=len(pieces),
        few_sequences=len(few),
        longest=max((count for count in counts if count > MOST_FEW), default=0),
        width=_width(max(piece.stop for piece in pieces), page_tokens, context),
        sampled=sum(piece.sampled for piece in pieces),
        tops=any(one.top_logprobs for one in wishes),
        masked=any(p.sampling.min_tokens > p.position for p in pieces if p.sampling and p.sampling.stop_ids),
    )


def padded(form: Form, *, max_batch: int) -> Form | None:
    """The form of the graph that such a step uses; None for a step that has none and runs launch by launch."""
    if form.longest or not form.sampled or form.sequences > max_batch:
        return None
    sequences, most = _power_of_2(form.sequences), _power_of_2(form.most)
    rows = sequences if most == 1 else max(sequences, _power_of_2(form.rows))
    sampled = rows
    if form.sampled < form.rows:
        sampled = _power_of_2(form.sampled)
        rows = max(rows, 2 * sampled)  # equally many would mean: every row, in order
    return replace(form, rows=rows, few=rows, most=most, sequences=sequences, few_sequences=sequences, sampled=sampled)


@dataclass(frozen=True, slots=True)
class Place:
    first: int  # word
    shape: tuple[int, ...]
    words: int  # of one element


@lru_cache(maxsize=256)
def input_places(form: Form, vocab: int) -> tuple[dict[str, Place], int]:
    """Where each input lies, and how many words they are together."""
    rows, sequences, sampled = form.rows, form.sequences, form.sampled
    arrays: dict[str, tuple[tuple[int, ...], int]] = {"seed": ((sampled,), 2)}
    arrays |= dict.fromkeys(("tokens", "follows", "slots", "sequence_of"), ((rows,), 1))
    arrays |= dict.fromkeys(("starts", "counts", "first_row"), ((sequences,), 1))
    names = ("sampled", "choice", "position", "top_k", "n_top", "temperature", "top_p", "min_p")
    arrays |= dict.fromkeys(names, ((sampled,), 1))
    arrays["tables"] = ((sequences, form.width), 1)
    if form.masked:
        arrays["allowed"] = ((sampled, -(-vocab // 32)), 1)
    return _placed(arrays)


@lru_cache(maxsize=256)
def output_places(form: Form) -> tuple[dict[str, Place], int]:
    """Tokens come first, in every form: the next step finds what it follows there."""
    arrays: dict[str, tuple[tuple[int, ...], int]] = dict.fromkeys(("tokens", "logprobs"), ((form.sampled,), 1))
    if form.tops:
        arrays |= dict.fromkeys(("top_ids", "top_logprobs"), ((form.sampled, MOST_TOPS), 1))
    return _placed(arrays)


def _placed(arrays: dict[str, tuple[tuple[int, ...], int]]) -> tuple[dict[str, Place], int]:
    places: dict[str, Place] = {}
    end = 0
    for name, (shape, words) in arrays.items():
        places[name] = Place(end, shape, words)
        length = words
        for side in shape:
            length *= side
        end = -(-(end + length) // _ALIGN_WORDS) * _ALIGN_WORDS
    return places, end


def _width(tokens: int, page_tokens: int, context: int) -> int:
    size = _FIRST_WIDTH_TOKENS
    while size < tokens:
        size *= _WIDER
    return -(-min(size, max(context, tokens)) // page_tokens)


def _power_of_2(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
