"""The examinations of a worker: prompts that it computes alone, from Examine to the last report or their end.

Both tiers hold one `Examinations` beside their own requests; docs/examinations.md has the steps. A prompt takes all its
pages when there is room and gives them back at its end; the worker's loop computes it in chunks, in the same steps as
everything else. Logprobs need the final state of every row and a mean does too, so such prompts do not read the prefix
cache; all of them fill it, if the worker permits it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.adapters.held import LACKS, HeldAdapters, no_adapters
from engine.examining.examined import ExaminedPrompt, ExamPhase, Seniority
from engine.pool.ledger import Holder
from engine.pool.pages import PagePool
from engine.step.batch import Chunk, Remaining, chunks, pages_needed
from engine.step.plan import Drafting, Piece, Plan, Result, RowsReport
from engine.step.reports import embedding
from mesh.messages.hashing import block_hashes
from mesh.messages.jobs import FullKind, Job, Reason
from mesh.messages.orders import Cancel, Examine
from mesh.messages.reports import Begun, Embedded, Full, Load, Lost, Prefilled, Scored
from mesh.sessions.legs import Outbox
from mesh.sessions.session import Session
from mesh.telemetry import semconv


class Examinations:
    def __init__(
        self,
        pages: PagePool,
        *,
        page_tokens: int,
        numerics: str,
        priority_seconds: float,
        outbox: Outbox,
        wake: Callable[[], None],  # there is something to compute, or pages came back
        adapters: HeldAdapters | None = None,  # None: prompts with an adapter are refused
        places_first: bool = False,  # an adapter's place is taken before pages, as the worker's own requests do
        drafts: bool = False,  # the model has a draft, which reads every prompt too
        publish: bool = True,  # other prompts may share the pages that examinations fill
    ) -> None:
        self._pages, self._page_tokens, self._numerics, self._bands = pages, page_tokens, numerics, pages.bands.count
        self._priority_seconds, self._outbox, self._wake = priority_seconds, outbox, wake
        self._drafts, self._publish = drafts, publish
        self._adapters, self._places_first = adapters or no_adapters(), places_first
        self._loop = asyncio.get_running_loop()
        self._all: dict[int, ExaminedPrompt] = {}  # by key, in order of seniority
        self._stepping: frozenset[int] = frozenset()  # keys in the step that runs now
        self._keys = 0  # the last one given: keys are negative, those of requests are not
        self._finished = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: int) -> bool:
        return key in self._all

    # ---- they come and go

    def add(self, gateway: Session, message: Examine) -> None:
        job, now = message.job, self._loop.time()
        self.cancel(Cancel(job.ticket.request, job.ticket.attempt - 1))
        leg = self._outbox.recorder(gateway, job, now)
        leg.enter(semconv.QUEUE, now)
        seniority = now + job.priority * self._priority_seconds, job.ticket.request
        self._keys -= 1
        exam = ExaminedPrompt(self._keys, job, message.examination, gateway, now, seniority, leg=leg)
        if (lease := self._adapters.lease(job.adapter)) is None:
            gateway.send(Lost(job.ticket, Reason.ADAPTER, LACKS))
            leg.end(now)
            return
        if self._needed(exam) > self._pages.pages:
            gateway.send(Lost(job.ticket, Reason.TOO_LARGE))
            leg.end(now)
            return
        exam.adapter = lease
        if self._places_first:
            lease.want()
        self._all[exam.key] = exam
        self._all = {each.key: each for each in sorted(self._all.values(), key=lambda each: each.seniority)}
        if job.deadline_seconds is not None:
            if job.deadline_seconds <= 0:  # a timer would come behind the next step
                return self._stop(exam)
            exam.deadline = self._loop.call_later(job.deadline_seconds, self._stop, exam)
        self._wake()

    def cancel(self, cancel: Cancel) -> None:
        """Drop this attempt of a request and all lower ones."""
        for exam in list(self._all.values()):
            if cancel.concerns(exam.job.ticket):
                self._stop(exam)

    def gateway_ended(self, gateway: Session) -> None:
        for exam in list(self._all.values()):
            if exam.gateway is gateway:
                self._stop(exam)

    # ---- pages

    def admit(self, room: int, *, limit: int | None = None, elder: tuple[Seniority, int] | None = None) -> None:
        """Give pages to those that wait, the most senior first, as long as `room` pages suffice. `limit`: one that
        needs more is refused, because pages are stuck. `elder`: a request of the worker that waits for so many pages
        too; examinations that are younger leave them to it."""
        self._give_up_adapters()
        for exam in self._in(ExamPhase.WAITING):
            if self._places_first and not exam.adapter.ready:
                continue
            needed = self._needed(exam)
            left = room - elder[1] if elder is not None and elder[0] < exam.seniority else room
            if limit is not None and needed > limit:
                exam.gateway.send(Full(exam.job.ticket, FullKind.NOW))
                self._stop(exam)
            elif needed > left:
                return
            else:
                self._take(exam)
                room -= needed

    def reserved(self, younger: Seniority) -> int:
        """Pages for which the most senior waiting one waits, if it is older than a request of this seniority; else
        0."""
        first = next(iter(self._in(ExamPhase.WAITING)), None)
        return 0 if first is None or first.seniority > younger else self._needed(first)

    def _take(self, exam: ExaminedPrompt) -> None:
        size, tokens = self._page_tokens, exam.job.prompt
        exam.hashes = block_hashes(tokens, page_tokens=size, numerics=self._numerics, salt=exam.job.cache_salt)
        # The last row is always computed, and never into a shared page.
        shared = () if exam.needs_every_row else self._pages.match(exam.hashes[: (len(tokens) - 1) // size])
        fresh = self._pages.take(self._needed(exam) - len(shared), exam.job.salt)
        assert fresh is not None, "room was checked"
        exam.pages, exam.cached = (*shared, *fresh), len(shared) // self._bands * size
        exam.done = exam.cached
        exam.enter(ExamPhase.COMPUTING)
        exam.adapter.want()

    def _give_up_adapters(self) -> None:
        for exam in list(self._all.values()):
            if exam.adapter.fault:
                exam.gateway.send(Lost(exam.job.ticket, Reason.ADAPTER, exam.adapter.fault))
                self._stop(exam)

    def _needed(self, exam: ExaminedPrompt) -> int:
        return self._bands * pages_needed(exam.total, self._page_tokens)

    # ---- steps

    def remaining(self) -> list[tuple[Seniority, Remaining]]:
        """The prompts that the next steps compute, for a loop that plans its own prompts with them."""
        ready = [exam for exam in self._in(ExamPhase.COMPUTING) if exam.adapter.ready]
        return [(exam.seniority, Remaining(exam.key, exam.total, exam.done)) for exam in ready]

    def pieces(self, budget: int, chunk: int) -> tuple[Piece, ...]:
        """Chunks of these prompts alone, within the rows that a step has left for them."""
        rest = [remaining for _, remaining in self.remaining()]
        return tuple(self.piece(each) for each in chunks(rest, budget=budget, chunk=chunk))

    @property
    def rows_left(self) -> int:
        """Rows that these prompts still need, for a loop that leaves some of its own to them."""
        return sum(exam.total - exam.done for exam in self._in(ExamPhase.COMPUTING))

    def piece(self, chunk: Chunk) -> Piece:
        exam, stop = self._all[chunk.key], chunk.first + chunk.count
        tokens = exam.job.prompt
        return Piece(
            key=chunk.key,
            tokens=tokens[chunk.first : stop],
            start=chunk.first,
            pages=exam.pages[: self._bands * pages_needed(stop, self._page_tokens)],
            drafting=Drafting(chunk.first) if self._drafts else None,
            wanted=exam.wanted(chunk),
            adapter=exam.adapter.weights,
        )

    def step_begins(self, plan: Plan) -> None:
        now = self._loop.time()
        self._stepping = frozenset(piece.key for piece in plan.pieces if piece.key in self._all)
        for key in self._stepping:
            exam = self._all[key]
            if exam.compute_seconds is None:
                exam.compute_seconds = now
                exam.gateway.send(Begun(exam.job.ticket))
                exam.leg.enter(semconv.COMPUTE, now)

    def step_ends(self, plan: Plan, result: Result) -> None:
        """Report what the step has found out; prompts that are complete end."""
        reports: Sequence[RowsReport | None] = result.reports or (None,) * len(plan.pieces)
        stepping, self._stepping = self._stepping, frozenset()
        for (piece, _, fault), report in zip(result.outcomes(plan), reports, strict=True):
            if piece.key not in stepping:
                continue
            exam = self._all[piece.key]
            if exam.phase is ExamPhase.STOPPING:
                self._release(exam)
                continue
            if fault:
                exam.gateway.send(Lost(exam.job.ticket, Reason.FAILED, fault))
                self._stop(exam)
                continue
            self._computed(exam, piece, len(plan.pieces))
            if report is not None:
                self._reported(exam, report)
            if exam.done == exam.total:
                self._finish(exam)

    def _computed(self, exam: ExaminedPrompt, piece: Piece, batch: int) -> None:
        exam.done = piece.stop
        if exam.leg.recording:
            exam.company.count(batch)
            exam.leg.note(exam.company.attributes)
            sizes = {semconv.TOKENS: len(piece.tokens), semconv.CACHED: exam.cached}
            exam.leg.event(semconv.CHUNK, self._loop.time(), sizes)
        full = exam.pages[: exam.done // self._page_tokens * self._bands]
        for index, page in enumerate(full) if self._publish else ():
            self._pages.publish(page, exam.hashes[index // self._bands], index % self._bands)

    def _reported(self, exam: ExaminedPrompt, report: RowsReport) -> None:
        exam.pooled = report.pooled
        if report.logprobs:
            columns = report.logprobs, report.ranks, report.top_ids, report.top_logprobs
            scored = Scored(exam.job.ticket, exam.scored, *columns)
            exam.scored += scored.count
            if exam.scored == exam.total - 1:
                exam.gateway.send(self._prefilled(exam))
            exam.gateway.send(scored)

    def _finish(self, exam: ExaminedPrompt) -> None:
        ticket = exam.job.ticket
        if exam.examination.pooling is not None:
            exam.gateway.send(self._prefilled(exam))
            exam.gateway.send(Embedded(ticket, embedding(exam.pooled, exam.examination.dimensions)))
        elif exam.scored == 0:  # a prompt of one token
            exam.gateway.send(self._prefilled(exam))
            exam.gateway.send(Scored(ticket, 0, b"", b"", b"", b""))
        exam.leg.note({semconv.TOKENS: exam.total, semconv.CACHED: exam.cached})
        self._finished += 1
        self._stop(exam)

    def _prefilled(self, exam: ExaminedPrompt) -> Prefilled:
        assert exam.compute_seconds is not None
        return Prefilled(
            exam.job.ticket,
            cached_tokens=exam.cached,
            queued_seconds=exam.compute_seconds - exam.arrived_seconds,
            computed_seconds=self._loop.time() - exam.compute_seconds,
        )

    # ---- ends

    def _stop(self, exam: ExaminedPrompt) -> None:
        """The prompt is over, complete or not. While a step computes it, its pages stay taken."""
        if exam.phase is ExamPhase.STOPPING:
            return
        if exam.deadline is not None:
            exam.deadline.cancel()
        exam.leg.end(self._loop.time())
        if exam.key in self._stepping:
            exam.enter(ExamPhase.STOPPING)
        else:
            self._release(exam)

    def _release(self, exam: ExaminedPrompt) -> None:
        exam.enter(ExamPhase.ENDED)
        del self._all[exam.key]
        self._pages.release(exam.pages)
        exam.adapter.close()
        self._wake()

    # ---- questions

    def jobs(self, plan: Plan) -> list[tuple[Session, Job]]:
        """The examined prompts of a step, for its record."""
        return [(exam.gateway, exam.job) for piece in plan.pieces if (exam := self._all.get(piece.key))]

    def join(self, load: Load) -> Load:
        """The worker's load with its examinations."""
        if not self._all:
            return load
        waiting, computing = len(self._in(ExamPhase.WAITING)), len(self._in(ExamPhase.COMPUTING))
        queued = sum(exam.total - exam.done for exam in self._all.values())
        return replace(
            load,
            waiting=load.waiting + waiting,
            running=load.running + computing,
            queued_tokens=load.queued_tokens + queued,
        )

    def holders(self) -> Iterator[Holder]:
        """The pages of each prompt, for the worker's ledger."""
        tickets = ((exam.job.ticket, exam.pages) for exam in self._all.values() if exam.pages)
        return (Holder("examined", pages, request=ticket.request, attempt=ticket.attempt) for ticket, pages in tickets)

    def counts(self) -> dict[str, int]:
        """Prompts whose examination was completed since the start."""
        return {"examined": self._finished}

    def _in(self, phase: ExamPhase) -> list[ExaminedPrompt]:
        return [exam for exam in self._all.values() if exam.phase is phase]
