"""A step's sizes, and where its arrays lie in the one block of words that goes to the device.

Rows of sequences with few rows come first: their attention gives every part of a long text a program of its own. Steps
that only decode, or verify drafts, are padded to one of a few shapes, and each shape is captured as a CUDA graph once.
The rows that pad a step have no slot: they touch no page, and their results are not read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from engine.step.plan import Piece
from mesh.messages.jobs import FEW_LISTED

MOST_FEW = 16  # rows of a sequence whose attention is split
MOST_TOPS = FEW_LISTED  # best logprobs that a row may want
_FIRST_WIDTH_TOKENS, _WIDER = 1024, 4  # block tables are as wide as one of a few sizes
_ALIGN_WORDS = 4  # 16 bytes, so that a kernel is compiled once


@dataclass(frozen=True, slots=True)
class StepShape:
    rows: int
    few: int  # leading rows: those of sequences with at most `most` rows each
    most: int
    sequences: int
    few_sequences: int  # leading sequences: those with at most `most` rows each
    longest: int  # rows of the longest other sequence; 0: there is no other
    width: int  # pages of a block table
    sampled: int  # sampled rows: all rows, or those that the input `sampled` names
    tops: bool  # at least one request wants the best logprobs
    masked: bool  # at least one request must not sample some ids

    def __post_init__(self) -> None:
        sound = 0 <= self.sampled <= self.rows and 0 <= self.few_sequences <= self.few <= self.rows
        if not sound or (self.few < self.rows) != (self.longest > 0) or self.sequences > self.rows:
            raise ValueError(f"a step cannot have this shape: {self}")


def in_order(pieces: Sequence[Piece]) -> list[int]:
    """The indexes of the pieces, those of few rows first."""
    return sorted(range(len(pieces)), key=lambda i: len(pieces[i].tokens) > MOST_FEW)


def shape_of(pieces: Sequence[Piece], *, page_tokens: int, context: int) -> StepShape:
    """The shape of exactly these pieces, unpadded."""
    counts = [len(piece.tokens) for piece in pieces]
    few = [count for count in counts if count <= MOST_FEW]
    sampling = [piece.sampling for piece in pieces if piece.sampling is not None]
    return StepShape(
        rows=sum(counts),
        few=sum(few),
        most=max(few, default=1),
        sequences=len(pieces),
        few_sequences=len(few),
        longest=max((count for count in counts if count > MOST_FEW), default=0),
        width=_width(max(piece.stop for piece in pieces), page_tokens, context),
        sampled=sum(piece.sampled for piece in pieces),
        tops=any(one.top_logprobs for one in sampling),
        masked=any(p.sampling.min_tokens > p.position for p in pieces if p.sampling and p.sampling.stop_ids),
    )


def padded(shape: StepShape, *, max_batch: int) -> StepShape | None:
    """The padded shape, for which there is a graph; None: such a step has no graph and runs launch by launch."""
    if shape.longest or not shape.sampled or shape.sequences > max_batch:
        return None
    sequences, most = _power_of_2(shape.sequences), _power_of_2(shape.most)
    rows = sequences if most == 1 else max(sequences, _power_of_2(shape.rows))
    sampled = rows
    if shape.sampled < shape.rows:
        sampled = _power_of_2(shape.sampled)
        rows = max(rows, 2 * sampled)  # equally many would mean: every row, in order
    return replace(shape, rows=rows, few=rows, most=most, sequences=sequences, few_sequences=sequences, sampled=sampled)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one array lies in a block of 32-bit words."""

    first: int  # first word
    shape: tuple[int, ...]
    dtype: str  # int32 | int64 | float32

    @property
    def stop(self) -> int:
        return self.first + prod(self.shape) * (2 if self.dtype == "int64" else 1)


_Arrays = dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, dtype)


@lru_cache(maxsize=256)
def input_places(shape: StepShape, vocab: int) -> tuple[dict[str, Place], int]:
    """Where each input lies, and how many words they are together."""
    rows, sequences, sampled = shape.rows, shape.sequences, shape.sampled
    arrays: _Arrays = {"seed": ((sampled,), "int64")}
    arrays |= dict.fromkeys(("tokens", "follows", "slots", "sequence_of"), ((rows,), "int32"))
    arrays |= dict.fromkeys(("starts", "counts", "first_row"), ((sequences,), "int32"))
    arrays |= dict.fromkeys(("sampled", "choice", "position", "top_k", "n_top"), ((sampled,), "int32"))
    arrays |= dict.fromkeys(("temperature", "top_p", "min_p"), ((sampled,), "float32"))
    arrays["tables"] = ((sequences, shape.width), "int32")
    if shape.masked:
        arrays["allowed"] = ((sampled, -(-vocab // 32)), "int32")
    return _placed(arrays)


@lru_cache(maxsize=256)
def output_places(shape: StepShape) -> tuple[dict[str, Place], int]:
    """Where each output lies. Tokens come first in every shape: there the next step finds those that it follows."""
    arrays: _Arrays = {"tokens": ((shape.sampled,), "int32"), "logprobs": ((shape.sampled,), "float32")}
    if shape.tops:
        best = (shape.sampled, MOST_TOPS)
        arrays |= {"top_ids": (best, "int32"), "top_logprobs": (best, "float32")}
    return _placed(arrays)


def _placed(arrays: _Arrays) -> tuple[dict[str, Place], int]:
    places: dict[str, Place] = {}
    end = 0
    for name, (shape, dtype) in arrays.items():
        places[name] = Place(end, shape, dtype)
        end = -(-places[name].stop // _ALIGN_WORDS) * _ALIGN_WORDS
    return places, end


def _width(tokens: int, page_tokens: int, context: int) -> int:
    size = _FIRST_WIDTH_TOKENS
    while size < tokens:
        size *= _WIDER
    return -(-min(size, max(context, tokens)) // page_tokens)


def _power_of_2(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
