"""Planning: chooses the rows of the next step, one for each request in decode with its drafts, and chunks of prompts.

Step 7 of a request's life. First every request gets the pages that the step cannot do without, oldest first; drafts get
the pages that are left over. No tensor is touched here."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from decode_svc.chunk_size import ChunkSize
from decode_svc.flights import Flight
from decode_svc.growth import Copies, Growth
from decode_svc.request.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.speculation import Speculation
from engine.pool.horizon import Horizon
from engine.step.batch import Chunk, Remaining, chunks, decode_piece, prompt_piece
from engine.step.logits import adjusts
from engine.step.plan import Piece, Plan
from mesh.timing.speed import Speed

EXAMINED_DIVISOR = 5  # prompts that are examined get a step's rows of prompts divided by this, and what requests leave

_seniority = attrgetter("seniority")


class Speeds(NamedTuple):
    """How fast steps were; gateways estimate waits from it, and route prompts by it."""

    tokens_per_second: float
    step_seconds: float
    local_tokens_per_second: float


class Planning:
    def __init__(
        self,
        requests: Mapping[int, DecodeRequest],
        growth: Growth,
        speculation: Speculation,
        *,
        horizon: Horizon,
        chunk_size: ChunkSize,
    ) -> None:
        self._requests = requests
        self._growth = growth
        self._speculation = speculation
        self._horizon, self._chunk_size = horizon, chunk_size
        self._speed = Speed()
        self._steps = self._steps_ahead = self._largest_batch = 0

    def plan(
        self, more: Callable[[int, int], tuple[Piece, ...]] = lambda budget, chunk: (), more_rows: int = 0
    ) -> Plan:
        """`more` adds prompts that are examined here, of which `more_rows` are not computed: chunks of them for what
        the requests leave of the budget, and requests leave them a share."""
        others, reading = self._decoding_and_reading()
        chunk_tokens = self._chunk_size.rows(others, behind=max(0, reading - 1))
        kept = min(more_rows, max(1, chunk_tokens // EXAMINED_DIVISOR))
        chosen, copies, budget = self._choose(max(1, chunk_tokens - kept))
        decoding = [request for request, chunk in chosen if chunk is None]
        lengths = dict(zip(map(id, decoding), self._speculation.lengths(decoding), strict=True))
        pieces = [
            self._decode(request, lengths[id(request)]) if chunk is None else self._prompt(request, chunk)
            for request, chunk in chosen
        ]
        pieces.extend(more(min(budget + kept, chunk_tokens), chunk_tokens))
        self._steps += bool(pieces)
        self._largest_batch = max(self._largest_batch, len(pieces))
        return Plan(self._steps, tuple(pieces), tuple(copies))

    def follow(self, flight: Flight) -> Plan | None:
        """The step after one whose result is not read yet: the same requests, each with the token that the unread step
        samples. None if that step alone does not decide it: a request is new, reads its prompt or drafts, adjusts its
        logits by the unread token or has a grammar, or needs a page that another request must give up."""
        known, pieces = flight.plan.pieces, list[Piece]()
        if not self._speculation.allows_step_ahead or any(
            not len(piece.tokens) == piece.sampled == 1 or adjusts(piece) or piece.masks is not None for piece in known
        ):
            return None
        running = {request.key: request for request in self._requests.values() if request.phase is DecodePhase.RUNNING}
        if any(flight.requests.get(key) is not request for key, request in running.items()):
            return None
        for piece in known:
            request = running.get(piece.key)
            if request is None or piece.position + 1 >= request.job.sampling.max_tokens:
                continue  # the request has ended, or the unread token ends it
            if self._growth.spare(request, piece.stop + 1) <= piece.stop:
                return None
            table = tuple(request.pages[: self._horizon.whole(piece.stop + 1)])
            moved = replace(piece, tokens=(0,), start=piece.stop, position=piece.position + 1, pages=table)
            pieces.append(replace(moved, follows=True))
        if not pieces:
            return None
        self._speculation.count_step_ahead()
        self._steps, self._steps_ahead = self._steps + 1, self._steps_ahead + 1
        return Plan(self._steps, tuple(pieces))

    def measure(self, plan: Plan, seconds: float) -> None:
        """Record how long a step took. Gateways route prompts by it, chunks get their size from it, and speculation
        chooses draft lengths by it."""
        drafts = sum(max(0, piece.sampled - 1) for piece in plan.pieces)
        self._speed.measure(plan.rows - drafts, seconds)
        decoding = [len(piece.tokens) for piece in plan.pieces if piece.sampled == len(piece.tokens)]  # with drafts
        self._chunk_size.measure(len(decoding), plan.rows - sum(decoding), seconds)
        self._speculation.measure(plan, seconds)

    def speeds(self) -> Speeds:
        return Speeds(
            self._speed.tokens_per_second,
            self._speed.step_seconds,
            self._chunk_size.tokens_per_second(self._decoding_and_reading()[0]),
        )

    def _decoding_and_reading(self) -> tuple[int, int]:
        """The requests that would wait for a long step, and those whose prompts are not read yet."""
        pending = [each.pending for each in self._requests.values() if each.phase is DecodePhase.RUNNING]
        return (decoding := pending.count(1)), len(pending) - decoding

    def counts(self) -> dict[str, int]:
        """Since the start: steps, steps launched before the previous one was read, requests of the largest step."""
        return {"steps": self._steps, "steps_ahead": self._steps_ahead, "largest_batch": self._largest_batch}

    def _choose(self, budget: int) -> tuple[list[tuple[DecodeRequest, Chunk | None]], Copies, int]:
        """The requests of the step, oldest first, each with its chunk: None where one row is left to compute, which is
        never cut. Prompts share a budget, whose rest is returned. A request that finds no page, or has lost its pages
        to an older one meanwhile, is left out."""
        chosen = list[tuple[DecodeRequest, Chunk | None]]()
        copies = Copies()
        most = budget
        running = sorted((r for r in self._requests.values() if r.phase is DecodePhase.RUNNING), key=_seniority)
        for request in running:
            if request.phase is not DecodePhase.RUNNING:
                continue
            if request.pending == 1:
                if not request.sits_out and self._growth.grow(request, request.filled + 1, copies):
                    chosen.append((request, None))
                continue
            rest = Remaining(request.key, len(request.tokens), request.filled)
            for chunk in chunks([rest], budget=budget, chunk=most):
                if self._growth.grow(request, chunk.first + chunk.count, copies):
                    budget -= chunk.count
                    chosen.append((request, chunk))
        return chosen, copies, budget

    def _decode(self, request: DecodeRequest, length: int) -> Piece:
        """One request's rows: its last token and the drafts to verify after it. The draft model may propose drafts for
        the next step. Drafts and proposals are cut to the pages that are free."""
        stop = request.filled + 1
        forced = self._forced(request)
        drafts = forced or self._speculation.drafts(request, length)
        propose = self._speculation.proposals(request, length, len(drafts))
        if drafts or propose:
            room = self._growth.spare(request, stop + len(drafts) + propose) - stop
            drafts = drafts[:room]
            propose = min(propose, room - len(drafts))
        return decode_piece(
            request.key,
            (request.tokens[-1], *drafts),
            request.filled,
            request.pages,
            page_tokens=self._horizon.page_tokens,
            bands=self._horizon.bands,
            sampling=request.job.sampling,
            position=request.next_position,
            drafting=self._speculation.drafting(request, propose),
            text=request.tokens if request.job.sampling.adjustments else None,
            adapter=request.adapter.weights,
            masks=None
            if request.constraint is None
            else request.constraint.masks(request.emitted, drafts, certain=bool(forced)),
        )

    def _forced(self, request: DecodeRequest) -> tuple[int, ...]:
        """The drafts that the request's grammar leaves no choice about."""
        most = max(0, request.left - 1)
        return request.constraint.drafts(request.emitted)[:most] if request.constraint is not None else ()

    def _prompt(self, request: DecodeRequest, chunk: Chunk) -> Piece:
        return prompt_piece(
            chunk,
            request.tokens,
            request.pages,
            page_tokens=self._horizon.page_tokens,
            bands=self._horizon.bands,
            sampling=request.job.sampling,
            position=request.next_position,
            drafting=self._speculation.reading(request, chunk),
            masks=request.constraint.masks(request.emitted) if request.constraint is not None and chunk.last else None,
            adapter=request.adapter.weights,
        )
