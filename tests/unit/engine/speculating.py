"""A decode loop for tests: one or several requests through a runner, a step at a time, with drafts of any origin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.drafts.acceptance import accepted, next_slot
from engine.step.batch import pages_needed
from engine.step.plan import Drafting, Piece, Plan, Result, Sampled
from mesh.messages.jobs import End, Sampling

Lookup = Callable[[Sequence[int], int], Sequence[int]]  # (text so far, most tokens to propose) -> proposals


class Computes(Protocol):
    """The one method of a runner, on any device, that this loop calls."""

    def compute(self, plan: Plan) -> Result: ...


@dataclass
class DraftedRequest:
    """A request with drafts. The draft model proposes them, `propose` at a time; `lookup` does so instead if it is
    given."""

    prompt: Sequence[int]
    sampling: Sampling
    pages: tuple[int, ...]
    propose: int = 0
    lookup: Lookup | None = None
    chunk: int = 1 << 20
    drafted: bool = True  # the draft model reads along
    emitted: list[Sampled] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    done: int = 0  # slots that the model has read
    read: int = 0  # slots that the draft model has read
    proposed: int = 0
    accepted: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.emitted) and self.sampling.end(len(self.emitted) - 1, self.emitted[-1].token) is not End.NONE

    def text(self) -> tuple[int, ...]:
        return (*self.prompt, *(one.token for one in self.emitted))

    def piece(self, key: int, page_tokens: int) -> Piece:
        text = self.text()
        tokens = (*text[self.done :], *self.drafts)[: max(self.chunk, 1 + len(self.drafts))]
        stop = self.done + len(tokens)
        sampled = 0 if stop < len(text) else 1 + len(self.drafts)
        asked = 0 if self.lookup is not None or not sampled else self.propose
        drafting = Drafting(self.read, text[self.read : self.done], asked) if self.drafted else None
        pages = self.pages[: pages_needed(stop + 1 + asked, page_tokens)]
        return Piece(
            key,
            tokens,
            self.done,
            pages,
            sampled,
            len(self.emitted),
            self.sampling if sampled else None,
            drafting,
            text=text if sampled and self.sampling.adjustments else None,
        )

    def take(self, piece: Piece, sampled: Sequence[Sampled], proposed: Sequence[int]) -> None:
        count = accepted(piece, sampled)
        self.emitted += sampled[: count + 1]
        self.proposed, self.accepted = self.proposed + len(self.drafts), self.accepted + count
        self.done = next_slot(piece, count)
        self.read = self.done + len(proposed) if piece.drafting else min(self.read, self.done)
        self.drafts = tuple(proposed)
        if self.lookup is not None and piece.sampled:
            left = self.sampling.max_tokens - len(self.emitted) - 1
            self.drafts = tuple(self.lookup(self.text(), max(0, min(self.propose, left))))


def run_to_end(runner: Computes, talks: Sequence[DraftedRequest], page_tokens: int = 32) -> None:
    """Computes all requests to their ends, in one batch."""
    step = 0
    while running := [(key, one) for key, one in enumerate(talks) if not one.ended]:
        pieces = tuple(one.piece(key, page_tokens) for key, one in running)
        result = runner.compute(Plan(step, pieces))
        for at, (piece, (_, one)) in enumerate(zip(pieces, running, strict=True)):
            one.take(piece, result.sampled[at], result.proposed[at] if result.proposed else ())
        step += 1
