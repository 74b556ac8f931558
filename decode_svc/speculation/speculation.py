"""Speculation: what stands behind a request's last token in its next step, and what became of it.

Step 7 of a request's life; an object the loop holds. Drafts come from a draft model, which lives in the same pages and
proposes behind each step, or from the text itself (lookup.py). The model verifies them as further rows of the same
step; what it does not say itself is never shown, hashed or counted as filled. How many is pace.py's matter."""

from collections.abc import Callable, Sequence
from enum import Enum

from decode_svc.requests import DecodeRequest
from decode_svc.speculation.draft_length import DRAFT_SHARE, FIRST_WAIT, Candidate, DraftLengths
from engine.acceptance import accepted
from engine.batch import Chunk
from engine.plan import Drafting, Piece, Plan, Sampled

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
        pace: DraftLengths | None = None,
    ) -> None:
        prior, share = PRIORS[source]
        self._source, self._accept = source, accept
        self._pace = pace or DraftLengths(longest=draft_tokens, prior=prior, draft_share=share)
        self._chunk_tokens, self._page_tokens, self._context_tokens = chunk_tokens, page_tokens, context_tokens
        self._bare: set[int] = set()  # published pages that the draft model has not read
        self.drafted = self.accepted = 0  # since the start
        self._rest_steps = 0  # to be planned without asking, since drafts did not pay just now

    # ---- before a step

    def admitted(self, request: DecodeRequest) -> None:
        """It runs from now on: whoever wrote its pages had the draft model read them, but for bare ones found here."""
        shared = request.pages[: len(request.hashes)]
        whole = next((index for index, page in enumerate(shared) if page in self._bare), None)
        request.drafts.read = request.filled if whole is None else min(request.filled, whole * self._page_tokens)

    def lengths(self, requests: Sequence[DecodeRequest]) -> list[int]:
        """Drafts that each of these requests, all in decode, should have verified (and proposed) in the next step."""
        if self._source is DraftSource.OFF:
            return [0] * len(requests)
        chosen = self._pace.lengths([self._candidate(request) for request in requests])
        self._rest_steps = 0 if any(chosen) else FIRST_WAIT
        budget = self._chunk_tokens  # rows that the draft model reads to catch up
        for index, request in enumerate(requests):
            if chosen[index] and (unread := self._unread(request)):
                if unread > min(budget, request.left):
                    chosen[index] = 0  # it costs more than it brings
                else:
                    budget -= unread
        return chosen

    def rest(self) -> bool:
        """May the next step be planned before this one's tokens are known? Not while drafts pay; asked once a step, and
        no for a step now and then, so that drafts are tried again."""
        self._rest_steps -= 1
        return self._source is DraftSource.OFF or self._rest_steps > 0

    def drafts(self, request: DecodeRequest, length: int) -> tuple[int, ...]:
        """What to verify now."""
        most = min(length, request.left - 1)
        if most <= 0:
            return ()
        if self._source is DraftSource.LOOKUP:
            return request.drafts.lookup.drafts(request.tokens, most)
        return request.drafts.next[:most]

    def proposals(self, request: DecodeRequest, length: int, drafts: int) -> int:
        """How many to propose behind this step, which verifies so many: all have slots even if all are accepted."""
        if self._source is not DraftSource.DRAFT:
            return 0
        context = self._context_tokens - len(request.tokens) - drafts
        return max(0, min(length, request.left - 2, request.left - drafts, context))

    def drafting(self, request: DecodeRequest, propose: int) -> Drafting | None:
        start = request.drafts.read
        return Drafting(start, tuple(request.tokens[start : request.filled]), propose) if propose else None

    def reading(self, request: DecodeRequest, chunk: Chunk) -> Drafting | None:
        """The draft model reads a prompt's chunk too, unless it is far behind already."""
        start = min(request.drafts.read, chunk.first)
        if self._source is not DraftSource.DRAFT or chunk.first - start > self._chunk_tokens:
            return None
        return Drafting(start, tuple(request.tokens[start : chunk.first]))

    # ---- after it

    def verified(self, piece: Piece, sampled: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        """The rows that count: those of accepted drafts and the one behind."""
        return sampled[: self._accept(piece, sampled) + 1]

    def settle(self, request: DecodeRequest, piece: Piece, shown: int, proposed: tuple[int, ...]) -> None:
        """The text has grown by so many tokens of this step's."""
        drafts, mine = piece.sampled - 1, request.drafts
        whole = len(request.tokens) == request.filled + 1  # nothing else came along: proposals stand behind it
        if drafts > 0:
            right = max(0, shown - 1)
            mine.drafted, mine.accepted = mine.drafted + drafts, mine.accepted + right
            self.drafted, self.accepted = self.drafted + drafts, self.accepted + right
            self._pace.note(mine.acceptance, drafts, right)
        mine.next = proposed if whole else ()
        if piece.drafting is not None:
            mine.read = request.filled + len(mine.next)
            if piece.drafting.unread and self._bare:
                self._bare.difference_update(request.pages[: len(request.hashes)])
        else:
            mine.read = min(mine.read, piece.start)

    def published(self, request: DecodeRequest, indexes: range) -> None:
        """These pages may be found by others from now on."""
        for index in indexes if self._source is DraftSource.DRAFT else ():
            if (index + 1) * self._page_tokens <= request.drafts.read:
                self._bare.discard(request.pages[index])
            else:
                self._bare.add(request.pages[index])

    def measure(self, plan: Plan, seconds: float) -> None:
        """How long a step took that held nothing but requests in decode."""
        if any(piece.sampled != len(piece.tokens) for piece in plan.pieces):
            return
        drafts = sum(piece.sampled - 1 for piece in plan.pieces)
        drafting = [piece.drafting for piece in plan.pieces if piece.drafting]
        caught_up = not any(one.unread for one in drafting)
        proposed = sum(one.propose for one in drafting)
        steady = proposed > 0 if drafts and self._source is DraftSource.DRAFT else not drafting
        if caught_up and steady:
            self._pace.measure(len(plan.pieces), drafts, seconds)

    # ----

    def _candidate(self, request: DecodeRequest) -> Candidate:
        return Candidate(request.drafts.acceptance, max(0, request.left - 1), self._unread(request))

    def _unread(self, request: DecodeRequest) -> int:
        return max(0, request.filled - request.drafts.read) if self._source is DraftSource.DRAFT else 0
