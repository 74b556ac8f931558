"""Speculation: chooses the drafts that follow a request's last token in its next step, and records what came of them.

Step 7 of a request's life. Drafts come from a draft model, which keeps its KV in the same pages and proposes after each
step, or from the text itself (decode_svc/speculation/lookup.py). The model verifies them as further rows of the same
step; a draft that it does not sample itself is never shown, hashed or counted as filled.
decode_svc/speculation/draft_length.py decides how many a step gets."""

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import takewhile
from operator import attrgetter

from decode_svc.speculation.draft_length import DRAFT_SHARE, FIRST_WAIT, Candidate, DraftLengths
from decode_svc.speculation.drafts import DraftedText
from engine.drafts.acceptance import accepted
from engine.step.batch import Chunk
from engine.step.plan import Drafting, Piece, Plan, Sampled

Accept = Callable[[Piece, Sequence[Sampled]], int]


class DraftSource(Enum):
    OFF = "off"
    DRAFT = "draft"  # the draft model
    LOOKUP = "lookup"  # the request's own text


PRIORS = {DraftSource.DRAFT: (0.6, DRAFT_SHARE), DraftSource.LOOKUP: (0.3, 0.0), DraftSource.OFF: (0.0, 0.0)}


class Speculation:
    def __init__(
        self,
        source: DraftSource,
        *,
        draft_tokens: int,
        chunk_tokens: int,
        page_tokens: int,
        context_tokens: int,
        accept: Accept = accepted,
        draft_lengths: DraftLengths | None = None,  # decides how many drafts a step gets
    ) -> None:
        prior, share = PRIORS[source]
        self._source, self._accept = source, accept
        self._draft_lengths = draft_lengths or DraftLengths(longest=draft_tokens, prior=prior, draft_share=share)
        self._chunk_tokens = chunk_tokens
        self._page_tokens = page_tokens
        self._context_tokens = context_tokens
        self._bare: set[int] = set()  # published pages that the draft model has not read
        self._drafted = self._accepted = 0  # since the start
        self._plain_steps = 0  # steps to come without drafts, because they did not pay at the last decision

    # ---- before a step

    def admitted(self, request: DraftedText) -> None:
        """The request runs from now on. The worker that wrote its pages had the draft model read them too, except for
        bare pages that came from the prefix cache."""
        shared = request.pages[: len(request.hashes)]
        whole = next((index for index, page in enumerate(shared) if page in self._bare), None)
        request.drafts.read = request.filled if whole is None else min(request.filled, whole * self._page_tokens)

    def lengths(self, requests: Sequence[DraftedText]) -> list[int]:
        """How many drafts the next step should verify (and propose) for each of these requests, all in decode."""
        if self._source is DraftSource.OFF:
            return [0] * len(requests)
        chosen = self._draft_lengths.lengths([self._candidate(request) for request in requests])
        self._plain_steps = 0 if any(chosen) else FIRST_WAIT
        budget = self._chunk_tokens  # rows that the draft model reads to catch up
        for index, request in enumerate(requests):
            if chosen[index] and (unread := self._unread(request)):
                if unread > min(budget, request.left):
                    chosen[index] = 0  # it costs more than it brings
                else:
                    budget -= unread
        return chosen

    @property
    def has_draft_model(self) -> bool:
        return self._source is DraftSource.DRAFT

    @property
    def allows_step_ahead(self) -> bool:
        """May the next step be planned before this one's tokens are known? Only while drafts do not pay, and not at
        every step, so that drafts are tried again."""
        return self._source is DraftSource.OFF or self._plain_steps > 1

    def count_step_ahead(self) -> None:
        """A step was planned ahead, hence without drafts."""
        self._plain_steps -= 1

    def drafts(self, request: DraftedText, length: int) -> tuple[int, ...]:
        """The drafts to verify now."""
        most = min(length, request.left - 1)
        if most <= 0:
            return ()
        if self._source is DraftSource.LOOKUP:
            return request.drafts.lookup.drafts(request.tokens, most)
        return request.drafts.next[:most]

    def proposals(self, request: DraftedText, length: int, drafts: int) -> int:
        """How many drafts to propose after this step, which verifies `drafts`: even if the model accepts all of these,
        there are slots for the new ones."""
        if self._source is not DraftSource.DRAFT:
            return 0
        context = self._context_tokens - len(request.tokens) - drafts
        return max(0, min(length, request.left - 2, request.left - drafts, context))

    def drafting(self, request: DraftedText, propose: int) -> Drafting | None:
        start = request.drafts.read
        return Drafting(start, tuple(request.tokens[start : request.filled]), propose) if propose else None

    def reading(self, request: DraftedText, chunk: Chunk) -> Drafting | None:
        """The draft model reads a prompt's chunk too, unless it is far behind already."""
        start = min(request.drafts.read, chunk.first)
        if self._source is not DraftSource.DRAFT or chunk.first - start > self._chunk_tokens:
            return None
        return Drafting(start, tuple(request.tokens[start : chunk.first]))

    # ---- after a step

    def verified(self, piece: Piece, sampled: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        """The rows that count: those of accepted drafts and the one behind them. A row whose numbers have overflowed
        does not: the next step has it as its first, and fails."""
        rows = sampled[: self._accept(piece, sampled) + 1]
        return rows if len(rows) < 2 else tuple(takewhile(attrgetter("is_number"), rows))

    def settle(self, request: DraftedText, piece: Piece, shown: int, proposed: tuple[int, ...]) -> None:
        """Record a step that has added `shown` tokens to the text: which drafts were right, and the new proposals."""
        drafts, state = piece.sampled - 1, request.drafts
        whole = len(request.tokens) == request.filled + 1  # no other tokens were added: the proposals continue the text
        if drafts > 0:
            right = max(0, shown - 1)
            state.drafted, state.accepted = state.drafted + drafts, state.accepted + right
            self._drafted, self._accepted = self._drafted + drafts, self._accepted + right
            if not _is_forced(piece):
                self._draft_lengths.note(state.acceptance, drafts, right)
        state.next = proposed if whole else ()
        if piece.drafting is not None:
            state.read = request.filled + len(state.next)
            if piece.drafting.unread and self._bare:
                self._bare.difference_update(request.pages[: len(request.hashes)])
        else:
            state.read = min(state.read, piece.start)

    def published(self, request: DraftedText, indexes: range) -> None:
        """Other requests may find these pages from now on."""
        for index in indexes if self._source is DraftSource.DRAFT else ():
            if (index + 1) * self._page_tokens <= request.drafts.read:
                self._bare.discard(request.pages[index])
            else:
                self._bare.add(request.pages[index])

    def measure(self, plan: Plan, seconds: float) -> None:
        """Record how long a step took; a step with prompts or forced drafts does not count."""
        if any(piece.sampled != len(piece.tokens) or _is_forced(piece) for piece in plan.pieces):
            return
        drafts = sum(piece.sampled - 1 for piece in plan.pieces)
        drafting = [piece.drafting for piece in plan.pieces if piece.drafting]
        caught_up = not any(each.unread for each in drafting)
        proposed = sum(each.propose for each in drafting)
        steady = proposed > 0 if drafts and self._source is DraftSource.DRAFT else not drafting
        if caught_up and steady:
            self._draft_lengths.measure(len(plan.pieces), drafts, seconds)

    def counts(self) -> dict[str, int]:
        """Drafts that were verified since the start, and those that were accepted."""
        return {"drafted": self._drafted, "accepted": self._accepted}

    # ----

    def _candidate(self, request: DraftedText) -> Candidate:
        return Candidate(request.drafts.acceptance, max(0, request.left - 1), self._unread(request))

    def _unread(self, request: DraftedText) -> int:
        return max(0, request.filled - request.drafts.read) if self._source is DraftSource.DRAFT else 0


def _is_forced(piece: Piece) -> bool:
    """Whether a grammar leaves no choice about the drafts: their acceptance says nothing about other drafts."""
    return piece.masks is not None and piece.masks.certain
