"""The prompts of a prefill worker: their state, the legal moves between their phases, their order, and their ends.

A prompt is here from the gateway's Prefill (step 2 of a request's life) until its pages are free again (step 9 of a
request's life). Nothing is reserved while it waits: it takes pages when decode's Landing has come, and keeps them until
Landed or its end, so that a repair costs a copy and not a prefill. Pages are free, and Quiet is sent, only when no
write of the ticket is in flight. The moves are the table "Prompt at prefill" of docs/protocol.md."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from engine.adapters.held import MODEL_ALONE, AnyLease
from engine.step.batch import Chunk, prompt_piece
from engine.step.piece_masks import StepMasks
from engine.step.plan import Drafting, Piece, Sampled
from mesh.messages.jobs import Job, Reason, Ticket, Token
from mesh.messages.kv_messages import Landing, Quiet
from mesh.messages.orders import Cancel
from mesh.messages.page_shape import PageShape
from mesh.messages.reports import Begun, Load, Lost, Prefilled, TokenOf, Tokens
from mesh.sessions.session import Session
from mesh.timing.pause import Pause
from prefill_svc.links import Links, PrefillHost
from prefill_svc.measures import PrefillMeasures
from prefill_svc.observed import PromptRecord
from prefill_svc.pages import PrefillPages, PromptPages

log = logging.getLogger("baton.prefill")

DUE_SECONDS = 10.0  # prompts whose deadline is nearer count as older
LOOK_AGAIN_SECONDS = 0.1


class PromptPhase(Enum):
    QUEUED = "queued"  # its turn to send Ready has not come, or decode answered Later
    ASKED = "asked"  # Ready is sent, decode has not answered
    PUSHING = "pushing"  # a landing is open: steps compute the prompt, or writes are in flight
    HELD = "held"  # Commit is sent; the pages wait for Landed or a Resend
    STOPPING = "stopping"  # the prompt is over; its pages wait for the last write and for the step that runs now
    ENDED = "ended"  # its pages are released and the worker has forgotten it


MOVES = {
    PromptPhase.QUEUED: {PromptPhase.ASKED, PromptPhase.STOPPING},
    PromptPhase.ASKED: {PromptPhase.QUEUED, PromptPhase.PUSHING, PromptPhase.STOPPING},
    PromptPhase.PUSHING: {PromptPhase.HELD, PromptPhase.STOPPING},
    PromptPhase.HELD: {PromptPhase.PUSHING, PromptPhase.STOPPING},
    PromptPhase.STOPPING: {PromptPhase.ENDED},
    PromptPhase.ENDED: set(),
}


@dataclass(slots=True)
class Prompt:
    key: int  # the worker's own number for this prompt
    job: Job
    gateway: Session  # the session over which the gateway sent it
    decode_address: str
    decode_incarnation: int
    queued_seconds: float  # when Prefill arrived
    phase: PromptPhase = PromptPhase.QUEUED
    answer: Pause = field(default_factory=Pause)  # began with Ready: other prompts go first when it is over
    later: Pause = field(default_factory=Pause)  # began with Later: no Ready before it is over
    landing: Landing | None = None  # decode's Landing, once this worker has accepted it
    shape: PageShape | None = None  # shape of decode's pages, which the landing counts
    targets: dict[int, int] = field(default_factory=dict)  # index of the prompt's page -> decode's page id
    own: PromptPages = field(default_factory=PromptPages)  # this worker's pages for it
    done: int = 0  # tokens whose KV is in the pages
    in_flight: int = 0  # writes that have begun and are not complete
    round: int = 0  # Resends so far
    adapter: AnyLease = MODEL_ALONE  # what is added to the model for it; no step computes it before it is ready
    masks: StepMasks | None = None  # what its grammar forbids the first token to be
    first: Token | None = None  # the first token, once it is sampled
    committed: bool = False  # Commit was sent at least once
    quiet_due: bool = False  # Quiet goes to decode when no write is in flight any more
    deadline: asyncio.TimerHandle | None = None  # drops the prompt when the client's deadline passes
    start: asyncio.TimerHandle | None = None  # gives the prompt back when it has waited too long for its first step
    landed_seconds: float = 0.0  # when the Landing was accepted
    transport: str = ""  # by which its pages travel, once it has landed
    reported_seconds: float = 0.0  # when Computing was sent last
    compute_seconds: float | None = None  # when its first step began
    first_seconds: float = 0.0  # when the first token was sampled
    bytes_written: int = 0
    bytes_before_first: int = 0  # bytes that were written when the first token was sampled
    record: PromptRecord = field(default_factory=PromptRecord)  # what traces show of it

    @property
    def ticket(self) -> Ticket:
        return self.job.ticket

    @property
    def total(self) -> int:
        return len(self.job.prompt) + len(self.job.emitted)

    @property
    def remaining(self) -> int:
        return self.total - self.done

    @property
    def computing(self) -> bool:
        return self.phase is PromptPhase.PUSHING and self.first is None

    def piece(self, chunk: Chunk, *, page_tokens: int, bands: int, drafts: bool) -> Piece:
        """The rows of one step."""
        return prompt_piece(
            chunk,
            self.job.tokens,
            self.own.pages,
            page_tokens=page_tokens,
            bands=bands,
            sampling=self.job.sampling,
            position=self.job.base,
            drafting=Drafting(chunk.first) if drafts else None,
            masks=self.masks,
            adapter=self.adapter.weights,
        )

    def begins(self, now: float) -> None:
        """The prompt has its landing, and steps compute it from now on. The gateway learns of it before the first of
        them, because a process that dies of a step tells nothing any more."""
        self.gateway.send(Begun(self.ticket))
        self.record.landed(now)
        self.adapter.want()

    def step_begins(self, now: float) -> None:
        if self.compute_seconds is None:
            self.compute_seconds = now
            self.record.step_begins(now)

    def show_first(self, position: int, best: Sampled, now: float) -> None:
        """The gateway gets the first token at once."""
        end = self.job.sampling.end(position, best.token)
        self.first = Token(position, best.token, best.logprob, best.top_ids, best.top_logprobs, end)
        self.first_seconds, self.bytes_before_first = now, self.bytes_written
        self.record.first_token(now, self.total, self.own.cached)
        self.gateway.send(self.prefilled())
        self.gateway.send(Tokens((TokenOf(self.ticket, self.first),)))

    def prefilled(self) -> Prefilled:
        """The message that goes to the gateway beside the first token."""
        assert self.compute_seconds is not None
        return Prefilled(
            self.ticket,
            cached_tokens=min(self.own.cached, len(self.job.prompt)),
            queued_seconds=self.compute_seconds - self.queued_seconds,
            computed_seconds=self.first_seconds - self.compute_seconds,
        )

    def enter(self, phase: PromptPhase) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"prompt {self.ticket.request}: no move from {self.phase.value} to {phase.value}")
        self.phase = phase


class Prompts:
    """All prompts of a worker. Iteration goes over a copy of the list, the most senior prompt first."""

    def __init__(
        self,
        host: PrefillHost,
        links: Links,
        pages: PrefillPages,
        *,
        measures: PrefillMeasures,
        incarnation: int,
        priority_seconds: float,
    ) -> None:
        self.measures = measures
        self._host, self._links, self._pages = host, links, pages
        self._incarnation, self._priority_seconds = incarnation, priority_seconds
        self._tokens_per_second = 0.0  # as last reported; 0: not measured yet
        self._prompts: dict[int, Prompt] = {}  # by key, in order of seniority
        self.stepping: set[int] = set()  # keys of the prompts whose rows are in the step that runs now

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(list(self._prompts.values()))

    def __contains__(self, key: int) -> bool:
        return key in self._prompts

    def __getitem__(self, key: int) -> Prompt:
        return self._prompts[key]

    def find(self, ticket: Ticket) -> Prompt | None:
        return next((p for p in self._prompts.values() if p.ticket == ticket), None)

    def bound_for(self, address: str) -> list[Prompt]:
        return [p for p in self._prompts.values() if p.decode_address == address]

    def seniority(self, prompt: Prompt) -> tuple[float, int]:
        """The smaller one goes first: one step of priority is worth `priority_seconds` of waiting. A near deadline
        makes a prompt older, by DUE_SECONDS at most, so that no prompt waits for ever."""
        left = prompt.job.deadline_seconds
        hurry = 0.0 if left is None else max(0.0, DUE_SECONDS - left)
        return prompt.queued_seconds - hurry + prompt.job.priority * self._priority_seconds, prompt.ticket.request

    @property
    def promised(self) -> int:
        """Pages for the prompts whose Ready is sent."""
        return sum(self._pages.needed(prompt.total) for prompt in self if prompt.phase is PromptPhase.ASKED)

    def load(self, tokens_per_second: float) -> Load:
        self._tokens_per_second = tokens_per_second
        waiting = sum(p.phase in (PromptPhase.QUEUED, PromptPhase.ASKED) for p in self)
        queued = sum(p.remaining if p.landing else self._pages.fresh * p.remaining for p in self if p.first is None)
        running = sum(p.computing for p in self)
        pages, page_seconds = self._pages, self.measures.page_seconds
        load = Load(waiting, running, round(queued), pages.available, pages.total, tokens_per_second)
        return replace(load, page_seconds=page_seconds)

    def add(self, prompt: Prompt) -> None:
        self._prompts[prompt.key] = prompt
        self._prompts = {p.key: p for p in sorted(self._prompts.values(), key=self.seniority)}
        if (seconds := prompt.job.deadline_seconds) is not None:
            if seconds <= 0:  # a timer would come behind the next step
                return self.drop(prompt)
            prompt.deadline = asyncio.get_running_loop().call_later(seconds, self.drop, prompt)
        self._watch_start(prompt)

    # ---- late prompts

    def _watch_start(self, prompt: Prompt) -> None:
        """Give the prompt back if its turn does not come in time: when it has waited for as long as the gateway allows,
        or when its deadline would pass before its first token, even at twice the measured speed."""
        job, limits = prompt.job, list[float]()
        if job.start_seconds is not None:
            limits.append(job.start_seconds)
        if job.deadline_seconds is not None and not job.emitted and self._tokens_per_second:
            limits.append(job.deadline_seconds - self._pages.fresh * prompt.total / (2 * self._tokens_per_second))
        if limits:
            prompt.start = asyncio.get_running_loop().call_later(max(0.0, min(limits)), self._give_back, prompt)

    def _give_back(self, prompt: Prompt) -> None:
        """Give the prompt back unless something of it is computed: a prompt that has begun goes on."""
        if prompt.phase is PromptPhase.QUEUED:
            prompt.gateway.send(Lost(prompt.ticket, Reason.LATE))
            self.stop(prompt, quiet=False)
        elif prompt.phase is PromptPhase.ASKED:  # decode answers soon, or the prompt is queued again
            prompt.start = asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._give_back, prompt)

    # ---- ends

    def cancel(self, cancel: Cancel) -> None:
        """Drop this attempt of a request and all lower ones."""
        for prompt in self:
            if cancel.concerns(prompt.ticket):
                self.drop(prompt)

    def drop(self, prompt: Prompt) -> None:
        """Stop a prompt that was cancelled, whose deadline has passed or whose gateway is gone."""
        self.stop(prompt, quiet=prompt.landing is not None)

    def lose(self, prompt: Prompt, why: str) -> None:
        """This worker cannot push the prompt: the gateway begins another attempt."""
        self.measures.failed(why)
        prompt.gateway.send(Lost(prompt.ticket, Reason.CANNOT_PUSH))
        self.stop(prompt, quiet=False, result="error")

    def fail(self, prompt: Prompt, why: str) -> None:
        """A step with this prompt alone fails: the gateway ends the request."""
        if prompt.phase is not PromptPhase.STOPPING:
            prompt.gateway.send(Lost(prompt.ticket, Reason.FAILED, why))
        self.stop(prompt, quiet=prompt.landing is not None, result="error")

    def stop(self, prompt: Prompt, *, quiet: bool, result: str = "cancelled") -> None:
        """The prompt is over. Its pages, and Quiet if decode waits for it, follow when `settle` permits."""
        prompt.quiet_due |= quiet
        if prompt.phase is not PromptPhase.STOPPING:
            request, phase, done, total = prompt.ticket.request, prompt.phase.value, prompt.done, prompt.total
            event = {"event": "prompt_stopped", "request": request, "phase": phase, "done": done, "total": total}
            log.debug("request %d: stops while %s, %d of %d tokens", request, phase, done, total, extra=event)
            if prompt.phase is PromptPhase.PUSHING and not prompt.committed:
                seconds = asyncio.get_running_loop().time() - prompt.landed_seconds
                self.measures.broken_off(prompt.transport, seconds, result)
            prompt.enter(PromptPhase.STOPPING)
            prompt.record.stopped(asyncio.get_running_loop().time(), prompt.bytes_written)
        self.settle(prompt)

    def settle(self, prompt: Prompt) -> None:
        """Send Quiet once the last write of a stopped prompt is over; release its pages once no step uses them."""
        if prompt.phase is not PromptPhase.STOPPING or prompt.in_flight:
            return
        if prompt.quiet_due:
            prompt.quiet_due = False
            self._links.to(prompt.decode_address).send(Quiet(prompt.ticket, self._incarnation))
        if prompt.key not in self.stepping:
            prompt.enter(PromptPhase.ENDED)
            for timer in (prompt.deadline, prompt.start):
                if timer is not None:
                    timer.cancel()
            del self._prompts[prompt.key]
            self._pages.release(prompt.own)
            prompt.adapter.close()
            self._host.wake()
