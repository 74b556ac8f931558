"""Small pure helpers with which both tiers' loops build plans: who computes how many rows in a step, on which pages.

Decode rows go first and are never cut; prompts share what is left of the budget in the order given, each at most one
chunk. Nothing here knows of requests: keys are whatever the caller calls them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.plan import Drafting, Piece
from mesh.messages import Sampling


@dataclass(frozen=True, slots=True)
class Remaining:
    """A prompt that is not computed yet; a fully cached one still computes its last row."""

    key: int
    total: int  # tokens
    done: int  # tokens whose keys and values are in pages

    def __post_init__(self) -> None:
        if not 0 <= self.done < self.total:
            raise ValueError(f"prompt {self.key}: {self.done} of {self.total} done; at least one row must remain")


@dataclass(frozen=True, slots=True)
class Chunk:
    key: int
    first: int  # slot of its first row
    count: int
    last: bool  # it ends the prompt, so its last row is sampled


def chunks(waiting: Sequence[Remaining], *, budget: int, chunk: int) -> tuple[Chunk, ...]:
    """Fills `budget` rows with prompts in order, each with at most `chunk` rows. The caller takes decode's rows off the
    budget first; as long as one row is left the oldest prompt moves."""
    chosen: list[Chunk] = []
    for one in waiting:
        count = min(chunk, one.total - one.done, budget)
        if count <= 0:
            break
        chosen.append(Chunk(one.key, one.done, count, one.done + count == one.total))
        budget -= count
    return tuple(chosen)


def pages_needed(stop: int, page_tokens: int) -> int:
    """Pages that cover slots 0 .. stop - 1."""
    return -(-stop // page_tokens)


def pages_filled(chunk: Chunk, page_tokens: int) -> range:
    """Page indexes of the prompt that became complete with this chunk, the partial last page included at its end:
    what is pushed to decode. Over a prompt's chunks every page index comes exactly once."""
    stop = chunk.first + chunk.count
    return range(chunk.first // page_tokens, pages_needed(stop, page_tokens) if chunk.last else stop // page_tokens)


def prompt_piece(
    chunk: Chunk,
    tokens: Sequence[int],
    pages: Sequence[int],
    *,
    page_tokens: int,
    sampling: Sampling,
    position: int = 0,
    drafting: Drafting | None = None,
) -> Piece:
    """A chunk's rows; `tokens` is the whole prompt (emitted tokens included, `position` counts them)."""
    stop = chunk.first + chunk.count
    return Piece(
        key=chunk.key,
        tokens=tuple(tokens[chunk.first : stop]),
        start=chunk.first,
        pages=tuple(pages[: pages_needed(stop, page_tokens)]),
        sampled=1 if chunk.last else 0,
        position=position,
        sampling=sampling if chunk.last else None,
        drafting=drafting,
    )


def decode_piece(
    key: int,
    tokens: Sequence[int],
    start: int,
    pages: Sequence[int],
    *,
    page_tokens: int,
    sampling: Sampling,
    position: int,
    drafting: Drafting | None = None,
) -> Piece:
    """The last emitted token, and drafts behind it if any; every row is sampled. The table covers what is proposed."""
    stop = start + len(tokens)
    slots = stop + (drafting.propose if drafting else 0)
    table = tuple(pages[: pages_needed(slots, page_tokens)])
    return Piece(key, tuple(tokens), start, table, len(tokens), position, sampling, drafting)
