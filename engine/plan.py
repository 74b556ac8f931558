"""One step of the engine, as plain data: what the schedulers decide and the runner carries out.

`plan` touches no tensor, `run(plan)` makes no policy decision. Several rows of one request may stand in one step and
several of its last rows may be sampled (a draft is verified that way); rolling back means naming a smaller `start` the
next time, since rows beyond it are simply written again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from mesh.messages import Sampling


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the draft model does behind a piece: it reads the accepted text from `start` on, then proposes.

    Its keys and values live in the draft's layers of the same pages. `start` may lie before the piece (rows that were
    computed without it, named by `unread`), inside it, or beyond what is accepted (then read again from there). After
    the step it has read every slot before the new token's (`acceptance.next_slot`) and so many more as it proposed
    tokens. It proposes fewer than `propose` where the pages, the context or max_tokens leave no more room, and none
    behind a token that ends the request."""

    start: int  # first slot that the draft model has not read
    unread: tuple[int, ...] = ()  # tokens of the slots start .. piece.start - 1
    propose: int = 0  # tokens to propose behind the last token that this step yields; 0: only read

    def __post_init__(self) -> None:
        if self.start < 0 or self.propose < 0:
            raise ValueError(f"a draft of {self.propose} tokens that reads from slot {self.start}")


@dataclass(frozen=True, slots=True)
class Piece:
    """One request's rows in a step."""

    key: int  # the caller's name for the request
    tokens: tuple[int, ...]  # inputs, one row each
    start: int  # slot of the first row; slots before it are already in the pages
    pages: tuple[int, ...]  # block table that covers every slot up to the last row
    sampled: int = 0  # how many of the last rows are sampled: 0 inside a prompt, 1 in decode, k + 1 to verify k drafts
    position: int = 0  # index of the emitted token that the first sampled row yields
    sampling: Sampling | None = None
    drafting: Drafting | None = None  # None: the draft model leaves these rows alone
    follows: bool = False  # the only token is what the step before yields for this key; `tokens` is (0,) in its place

    def __post_init__(self) -> None:
        sound = 0 <= self.sampled <= len(self.tokens) > 0 <= self.start
        if not sound or (self.sampled > 0) != (self.sampling is not None):
            what = f"{self.sampled} sampled of {len(self.tokens)} rows at slot {self.start}"
            raise ValueError(f"piece {self.key}: {what}")
        if self.drafting and len(self.drafting.unread) != max(0, self.start - self.drafting.start):
            what = f"{len(self.drafting.unread)} unread tokens from slot {self.drafting.start} to {self.start}"
            raise ValueError(f"piece {self.key}: {what}")
        if self.follows and (self.tokens != (0,) or self.drafting):
            raise ValueError(f"piece {self.key}: one that follows has one row, no token yet and no draft")

    @property
    def stop(self) -> int:
        """The slot after the last row."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    step: int
    pieces: tuple[Piece, ...]
    copies: tuple[tuple[int, int], ...] = ()  # (from, to) pages, copied before anything is computed

    @property
    def rows(self) -> int:
        return sum(len(piece.tokens) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a step yields, piece by piece in the plan's order: one entry per sampled row."""

    sampled: tuple[tuple[Sampled, ...], ...]
    proposed: tuple[tuple[int, ...], ...] = ()  # drafts behind each piece's last token; () without a draft


OnLayers = Callable[[int, int], None]  # (first layer, layers) are in the pages now; called on the event loop


class Runner(Protocol):
    """Carries out plans, one at a time: the real one in its own thread, the simulated one in virtual time.

    A plan may be handed over while the one before still runs; its pieces then either name all their tokens or follow
    (`Piece.follows`). Pages that a plan names belong to it until its result is there."""

    layers: int
    ahead: bool  # is it worth handing a plan over before the one in front of it was read?

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Awaitable[Result]: ...
