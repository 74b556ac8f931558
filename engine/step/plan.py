"""One step of the engine, as plain data: the schedulers decide it and the runner carries it out.

Making a plan touches no tensor, and running it decides nothing. A step may compute several rows of one request, and
sample several of its last rows: that is how drafts are verified. To roll a request back, the next plan names a smaller
`start`: the rows from there on are written again."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import isnan
from typing import Protocol

import numpy as np

from engine.step.adapted import AdapterWeights
from engine.step.piece_masks import StepMasks
from mesh.messages.jobs import Pooling, Sampling


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the draft model does for one piece: it reads the accepted text from slot `start` on, then it proposes
    tokens.

    Its keys and values stand in the draft's layers of the same pages. `start` may lie before the piece: then `unread`
    holds the tokens in between, which were computed without the draft model. It may also lie inside the piece, or
    behind the accepted text: then the draft reads from the end of the accepted text. After the step the draft has read
    all slots before the new token's slot (`engine/drafts/acceptance.py`, `next_slot`), and one more for every token
    that it proposed. It proposes fewer than `propose` tokens where the pages, the context or max_tokens have no room
    for more, and none behind a token that ends the request."""

    start: int  # first slot that the draft model has not read
    unread: tuple[int, ...] = ()  # tokens of the slots start .. piece.start - 1
    propose: int = 0  # tokens to propose behind the last token that this step yields; 0: the draft only reads

    def __post_init__(self) -> None:
        if self.start < 0 or self.propose < 0:
            raise ValueError(f"a draft of {self.propose} tokens that reads from slot {self.start}")


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The question of an examination about a piece's rows, besides their keys and values."""

    following: tuple[
        int, ...
    ] = ()  # tokens whose logprobs are wanted: row i yields that of following[i], which is next
    top: int = 0  # logprobs of so many likeliest tokens too
    pooling: Pooling | None = None  # LAST: the hidden state of the last row; MEAN: a sum over all rows
    before: bytes = b""  # MEAN: the sum over the rows of earlier steps, as floats; empty: there are none

    def rows(self, count: int) -> int:
        """Number of last rows, of `count`, whose final hidden states are needed."""
        return 1 if self.pooling is Pooling.LAST else count if self.following or self.pooling else 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one request in a step."""

    key: int  # number by which the caller knows the request
    tokens: tuple[int, ...]  # input tokens, one row each
    start: int  # slot of the first row; the keys and values of all slots before it are in the pages
    pages: tuple[int, ...]  # block table: pages of every slot up to that of the last row, one for each band at a time
    sampled: int = 0  # number of last rows that are sampled: 0 inside a prompt, 1 in decode, k + 1 to verify k drafts
    position: int = 0  # index, among the request's emitted tokens, of the token that the first sampled row yields
    sampling: Sampling | None = None
    drafting: Drafting | None = None  # None: the draft model does nothing for this piece
    masks: StepMasks | None = field(default=None, compare=False)  # what a grammar forbids in the sampled rows
    follows: bool = False  # the only token is the one that the step before samples for this key; `tokens` is (0,)
    wanted: WantedRows | None = None  # a prompt under examination; nothing of it is sampled
    adapter: AdapterWeights | None = None  # what is added to the model for these rows; None: the model alone
    # Prompt and emitted tokens up to the first sampled row, and maybe more: it is only ever appended to. None unless
    # `sampling` has adjustments of logits, which depend on it.
    text: Sequence[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        sound = 0 <= self.sampled <= len(self.tokens) > 0 <= self.start
        if not sound or (self.sampled > 0) != (self.sampling is not None):
            what = f"{self.sampled} sampled of {len(self.tokens)} rows at slot {self.start}"
            raise ValueError(f"piece {self.key}: {what}")
        if self.drafting and len(self.drafting.unread) != max(0, self.start - self.drafting.start):
            what = f"{len(self.drafting.unread)} unread tokens from slot {self.drafting.start} to {self.start}"
            raise ValueError(f"piece {self.key}: {what}")
        if self.wanted and (self.sampled or len(self.wanted.following) > len(self.tokens)):
            what = (
                f"{self.sampled} sampled rows, {len(self.wanted.following)} tokens that follow {len(self.tokens)} rows"
            )
            raise ValueError(f"piece {self.key}: an examination with {what}")
        if self.follows and (self.tokens != (0,) or self.drafting):
            raise ValueError(f"piece {self.key}: a piece that follows has one row, token 0 and no draft")

    @property
    def stop(self) -> int:
        """The slot after the last row."""
        return self.start + len(self.tokens)

    @property
    def kept(self) -> int:
        """Number of last rows whose final hidden states the step needs."""
        return self.wanted.rows(len(self.tokens)) if self.wanted else self.sampled


@dataclass(frozen=True, slots=True)
class Plan:
    step: int
    pieces: tuple[Piece, ...]
    copies: tuple[tuple[int, int], ...] = ()  # (from, to) pages, copied before the step computes

    @property
    def rows(self) -> int:
        return sum(len(piece.tokens) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token that one sampled row yields, with its logprobs."""

    token: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

    @property
    def is_number(self) -> bool:
        """False: the model's numbers have overflowed in this row, so the token means nothing."""
        return not isnan(self.logprob)


@dataclass(frozen=True, slots=True)
class RowsReport:
    """A step's answer about the rows of an examined prompt. Numbers are packed, little endian, 4 bytes each."""

    logprobs: bytes = b""  # floats, one for each following token
    ranks: bytes = b""  # unsigned; 1: no other token is likelier
    top_ids: bytes = b""  # unsigned; the likeliest tokens of each row, best first
    top_logprobs: bytes = b""  # floats
    pooled: bytes = b""  # floats: the hidden state of the last row, or the sum over all rows so far

    @property
    def is_number(self) -> bool:
        """False: the model's numbers have overflowed in some row. A logprob of -inf is a number: it means never."""
        logprobs, pooled = (np.frombuffer(values, "<f4") for values in (self.logprobs, self.pooled))
        return not np.isnan(logprobs).any() and bool(np.isfinite(pooled).all())


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step: one entry per piece, in the plan's order."""

    sampled: tuple[tuple[Sampled, ...], ...]  # one per sampled row of the piece; none if its masks were late
    proposed: tuple[tuple[int, ...], ...] = ()  # the draft's proposals behind the last token; () without a draft model
    done_seconds: float = field(default=0.0, compare=False)  # when it was computed, by the loop's clock; 0: not known
    reports: tuple[RowsReport | None, ...] = ()  # one per piece; () if no piece is under examination
    faults: tuple[str, ...] = ()  # one per piece: why it fails alone, empty if it does not; () if all went well

    def outcomes(self, plan: Plan) -> Iterator[tuple[Piece, tuple[Sampled, ...], str]]:
        """Each piece of the plan with its tokens and its fault."""
        return zip(plan.pieces, self.sampled, self.faults or repeat(""), strict=False)


OnLayers = Callable[[int, int], None]  # (first layer, layers): these layers' keys and values are in the pages


class Runner(Protocol):
    """Carries out plans, one at a time: a real runner in its own thread, the simulated one in virtual time.

    A plan may be handed over while the one before it still runs; each of its pieces then names all its tokens or
    follows (`Piece.follows`). The pages that a plan names belong to it until its result is there. `on_layers` is called
    on the event loop, always before the result."""

    layers: int  # layers in a page: the model's and its draft's
    ahead: bool  # True: hand a plan over before the previous result is there, so that the device never waits

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Awaitable[Result]: ...
