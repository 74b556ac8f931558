"""Small pure functions with which both tiers build plans: which prompts compute how many rows in a step, and the pieces
for them.

Decode rows go first and are never cut. Prompts share the rest of the row budget in the order given, each with at most
one chunk. Nothing here knows requests, only the keys by which the caller knows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.step.adapted import AdapterWeights
from engine.step.piece_masks import StepMasks
from engine.step.plan import Drafting, Piece
from mesh.messages.jobs import Sampling


@dataclass(frozen=True, slots=True)
class Remaining:
    """A prompt with rows left to compute. At least its last row is computed, even if all its pages are cached."""

    key: int
    total: int  # tokens of the prompt
    done: int  # tokens whose keys and values are in the pages

    def __post_init__(self) -> None:
        if not 0 <= self.done < self.total:
            raise ValueError(f"prompt {self.key}: {self.done} of {self.total} done; at least one row must remain")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one prompt in one step."""

    key: int
    first: int  # slot of the first row
    count: int  # rows
    last: bool  # True: the chunk ends the prompt, so its last row is sampled


def chunks(waiting: Sequence[Remaining], *, budget: int, chunk: int) -> tuple[Chunk, ...]:
    """Divides `budget` rows among the prompts in order, at most `chunk` rows each. The caller has already subtracted
    decode's rows from the budget. While one row is left, the first prompt makes progress."""
    chosen: list[Chunk] = []
    for prompt in waiting:
        count = min(chunk, prompt.total - prompt.done, budget)
        if count <= 0:
            break
        chosen.append(Chunk(prompt.key, prompt.done, count, prompt.done + count == prompt.total))
        budget -= count
    return tuple(chosen)


def pages_needed(stop: int, page_tokens: int) -> int:
    """How many pages cover the slots 0 .. stop - 1."""
    return -(-stop // page_tokens)


def pages_filled(chunk: Chunk, page_tokens: int) -> range:
    """Indexes of the prompt's pages that this chunk completes, and of the partial last page when it ends the prompt:
    the pages that prefill sends to decode after this chunk. Over all chunks of a prompt, every index comes exactly
    once."""
    stop = chunk.first + chunk.count
    return range(chunk.first // page_tokens, pages_needed(stop, page_tokens) if chunk.last else stop // page_tokens)


def prompt_piece(
    chunk: Chunk,
    tokens: Sequence[int],
    pages: Sequence[int],
    *,
    page_tokens: int,
    bands: int = 1,
    sampling: Sampling,
    position: int = 0,
    drafting: Drafting | None = None,
    masks: StepMasks | None = None,
    adapter: AdapterWeights | None = None,
) -> Piece:
    """The piece that computes a chunk. `tokens` is the whole prompt, in which a resumed request's `position` emitted
    tokens are included; `pages` has one page for each of the model's bands for every `page_tokens` of them."""
    stop = chunk.first + chunk.count
    return Piece(
        key=chunk.key,
        tokens=tuple(tokens[chunk.first : stop]),
        start=chunk.first,
        pages=tuple(pages[: bands * pages_needed(stop, page_tokens)]),
        sampled=1 if chunk.last else 0,
        position=position,
        sampling=sampling if chunk.last else None,
        drafting=drafting,
        text=tokens if chunk.last and sampling.adjustments else None,
        masks=masks if chunk.last else None,
        adapter=adapter,
    )


def decode_piece(
    key: int,
    tokens: Sequence[int],
    start: int,
    pages: Sequence[int],
    *,
    page_tokens: int,
    bands: int = 1,
    sampling: Sampling,
    position: int,
    drafting: Drafting | None = None,
    text: Sequence[int] | None = None,
    masks: StepMasks | None = None,
    adapter: AdapterWeights | None = None,
) -> Piece:
    """The piece of a request in decode: `tokens` are its last emitted token and the drafts behind it, and every row is
    sampled. The block table also covers the slots of the tokens that the draft model will propose. `text` is the
    whole text of a request that adjusts logits (`engine/step/logits.py`)."""
    stop = start + len(tokens)
    slots = stop + (drafting.propose if drafting else 0)
    table = tuple(pages[: bands * pages_needed(slots, page_tokens)])
    return Piece(
        key, tuple(tokens), start, table, len(tokens), position, sampling, drafting, masks, text=text, adapter=adapter
    )
