"""State of each request at a decode worker, the legal moves between its phases, and the owner of a landing's pages.

The moves are those of the table "Landing at decode" in docs/protocol.md. `tokens` is the whole text, prompt and answer;
`filled` counts the tokens whose KV is in the pages. The next steps compute the difference: one token in decode, a whole
prompt where decode prefills itself (*local*)."""

from asyncio import TimerHandle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from operator import or_
from typing import Protocol

from decode_svc.request.observed import AttemptRecord
from decode_svc.speculation.drafts import Drafts
from engine.adapters.held import MODEL_ALONE, AnyLease
from engine.pool.horizon import GONE, held
from engine.step.constraint import Constraint
from engine.step.plan import Piece
from mesh.messages.jobs import Job, Reason, Ticket, Token
from mesh.messages.kv_messages import Commit, Landing, Quiet
from mesh.messages.reports import Begun
from mesh.sessions.session import Session


class DecodePhase(Enum):
    OPEN = "open"  # it has no pages; prefill's Ready has not come, or was answered Later
    LANDING = "landing"  # it has pages that a prefill worker writes
    LOCAL = "local"  # this worker will prefill it, when there is room
    RUNNING = "running"  # its pages are its own; steps compute it
    LOST = "lost"  # its landing was fenced; the gateway got Lost and will raise the attempt
    ENDED = "ended"  # the worker has forgotten it


MOVES = {
    DecodePhase.OPEN: {DecodePhase.LANDING, DecodePhase.ENDED},
    DecodePhase.LANDING: {DecodePhase.OPEN, DecodePhase.RUNNING, DecodePhase.LOST, DecodePhase.ENDED},
    DecodePhase.LOCAL: {DecodePhase.RUNNING, DecodePhase.ENDED},
    DecodePhase.RUNNING: {DecodePhase.ENDED},
    DecodePhase.LOST: {DecodePhase.ENDED},
    DecodePhase.ENDED: set[DecodePhase](),
}

WAITING = (DecodePhase.OPEN, DecodePhase.LOCAL)  # it has no pages and waits for them


def same_ticket(one: Ticket, other: Ticket) -> bool:
    """Rule [ticket]: tickets are equal only with the gateway's random bits. Otherwise, when a gateway restarts and
    counts from one again, the Quiet of an old attempt frees the landing of a new one."""
    return one == other


def layer_mask(first_layer: int, layers: int) -> int:
    """One bit for each of these layers."""
    return ((1 << layers) - 1) << first_layer


@dataclass(frozen=True, slots=True)
class PageOwner:
    """The writer whose writes may still reach a landing or quarantined page."""

    ticket: Ticket
    writer: int  # incarnation of the prefill worker
    transport: str
    round: int  # Resends sent for the landing

    def committed_by(self, commit: Commit) -> bool:
        """Rule [resend_count]: Commit counts only with the current round. A Commit that was sent before a Resend says
        nothing about the write that the Resend asked for."""
        return same_ticket(self.ticket, commit.ticket) and self.round == commit.round

    def quieted_by(self, quiet: Quiet) -> bool:
        """Rule [incarnation]: Quiet counts only from the process that writes. A process that was restarted at
        its address knows nothing of the old process's writes."""
        return same_ticket(self.ticket, quiet.ticket) and self.writer == quiet.incarnation


@dataclass(slots=True)
class OpenLanding:
    """The pages that one ticket may write, and which of their layers have arrived and been checked."""

    ticket: Ticket
    writer: int  # incarnation of the prefill worker
    transport: str
    first_page: int  # index of the prompt's first page that decode lacks
    pages: tuple[int, ...]  # from there on to the end; GONE for those that nothing reads, so that they do not land
    began_seconds: float
    progress_seconds: float  # when the last valid span or Computing came
    valid: list[int]  # one bit per layer, for each page
    all_layers: int  # the mask of a valid page
    first_windowed: int = 0  # the first stretch that lands whole; bands with windows lack those before
    longest_step_ms: int = 0  # prefill's longest step, from Computing
    round: int = 0  # Resends sent
    commit: Commit | None = None  # Commit of this round, once it has come
    filling: dict[int, list[int]] = field(default_factory=dict)  # layers of frames on their way into a page, as masks

    @classmethod
    def begun(
        cls,
        owner: PageOwner,
        lands: Sequence[bool],
        taken: Iterable[int],
        firsts: tuple[int, int],
        *,
        layers: int,
        now: float,
    ) -> "OpenLanding":
        """A landing into the pages that were `taken` for it. `firsts`: `first_page` and `first_windowed`; `lands`: for
        each page of the prompt from the first one on whether it lands."""
        first_page, first_windowed = firsts
        fresh, every = iter(taken), layer_mask(0, layers)
        pages = tuple(next(fresh) if each else GONE for each in lands)
        valid = [0 if each else every for each in lands]
        place = owner.ticket, owner.writer, owner.transport, first_page, pages
        return cls(*place, now, now, valid, every, first_windowed)

    @property
    def places(self) -> dict[int, int]:
        """The page of each index that lands."""
        return {index: page for index, page in enumerate(self.pages, self.first_page) if page != GONE}

    def lands(self, index: int) -> bool:
        """Is the page of this index one that the ticket may write?"""
        place = index - self.first_page
        return 0 <= place < len(self.pages) and self.pages[place] != GONE

    @property
    def writable(self) -> tuple[int, ...]:
        """The pages that the ticket may write."""
        return held(self.pages)

    @property
    def message(self) -> Landing:
        return Landing(self.ticket, self.first_page, self.writable, self.first_windowed)

    def frame_begins(self, index: int, first_layer: int, layers: int) -> bool:
        """Rule [checksum]: layers are not valid while a frame is received into them. Otherwise decode admits a page
        into which a second copy of a span is half received, and its damage is read unchecked. False: all the layers of
        the frame are valid already, and its bytes must not touch them."""
        place, mask = index - self.first_page, layer_mask(first_layer, layers)
        if self.valid[place] & mask == mask:
            return False
        self.valid[place] &= ~mask
        self.filling.setdefault(place, []).append(mask)
        return True

    def frame_ends(self, index: int, first_layer: int, layers: int) -> None:
        """All bytes of a frame are in its page."""
        masks, mask = self.filling.get(index - self.first_page, []), layer_mask(first_layer, layers)
        if mask in masks:
            masks.remove(mask)

    def settle(self, place: int, mask: int, *, valid: bool) -> None:
        """These layers of a page have been checked. Those that another frame writes now get their verdict with it."""
        self.valid[place] &= ~mask
        if valid:
            filling = self.filling.get(place, [])
            self.valid[place] |= mask & ~reduce(or_, filling, 0)

    @property
    def complete(self) -> bool:
        return all(mask == self.all_layers for mask in self.valid)

    @property
    def sound_pages(self) -> int:
        """How many pages from the first on are valid without a gap; those that nothing reads are no gap."""
        return next((i for i, mask in enumerate(self.valid) if mask != self.all_layers), len(self.valid))

    @property
    def landed(self) -> tuple[int, int]:
        """(number of valid pairs of page and layer, number of all such pairs)."""
        valid = sum(mask.bit_count() for mask, page in zip(self.valid, self.pages, strict=True) if page != GONE)
        return valid, len(self.writable) * self.all_layers.bit_count()

    @property
    def owner(self) -> PageOwner:
        return PageOwner(self.ticket, self.writer, self.transport, self.round)


@dataclass(slots=True)
class DecodeRequest:
    job: Job
    gateway: Session
    opened_seconds: float  # on this worker's clock, moved back by the age that Open named
    senior_seconds: float  # opened_seconds, moved by what the request's priority is worth
    tokens: list[int]
    prefill: int | None  # incarnation of the prefill worker; None: local
    phase: DecodePhase = field(init=False)
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # block hashes of the stretches that were published or found
    filled: int = 0  # tokens whose KV is in the pages
    gone: int = 0  # stretches at the beginning whose pages behind windows were given back, or have never been here
    produced: dict[int, Token] = field(default_factory=dict)  # position -> token; a later attempt emits them again
    passed: int | None = None  # younger requests that got pages since this one got Later; None: it never did
    shared: int = 0  # pages that the prefix cache had when it got its own
    preempted: bool = False  # it gives way to an older one
    landing: OpenLanding | None = None
    landing_began_seconds: float | None = None  # when the landing began that it was admitted from
    running_seconds: float = 0.0  # when it was admitted
    cached: int = 0  # tokens found in the prefix cache when it was prefilled here
    steps: int = 0  # steps that have computed it
    drafts: Drafts = field(default_factory=Drafts)
    constraint: Constraint | None = None  # the grammar that the answer follows
    adapter: AnyLease = MODEL_ALONE  # what is added to the model for it; until it is ready, it gets no pages
    record: AttemptRecord = field(default_factory=AttemptRecord)  # what traces show of this attempt
    deadline: TimerHandle | None = None  # drops the request when its deadline passes
    start: TimerHandle | None = None  # gives it back when nothing of it is computed after too long
    begun: Job | None = None  # the attempt whose first step has begun

    def __post_init__(self) -> None:
        self.phase = DecodePhase.LOCAL if self.prefill is None else DecodePhase.OPEN

    def enter(self, phase: DecodePhase) -> None:
        """The only way from one phase to another."""
        if phase not in MOVES[self.phase]:
            raise ValueError(f"request {self.key}: no move from {self.phase.value} to {phase.value}")
        self.phase = phase
        if phase is DecodePhase.ENDED:
            self.adapter.close()
        for timer in (self.deadline, self.start) if phase is DecodePhase.ENDED else ():
            if timer is not None:
                timer.cancel()

    def step_begins(self, now: float, piece: Piece) -> None:
        """A step has rows of the request. The gateway learns of an attempt's first one, unless tokens tell it."""
        self.record.step_begins(now, piece)
        if self.begun is not self.job:
            self.begun = self.job
            if self.job.base not in self.produced:
                self.gateway.send(Begun(self.ticket))

    def holds(self, ticket: Ticket) -> bool:
        """Is this the ticket of the request's current attempt?"""
        return same_ticket(self.ticket, ticket)

    def lands_from_another(self, writer: int) -> bool:
        """Does another prefill worker than this one write its landing?"""
        return self.landing is not None and self.landing.writer != writer

    @property
    def ticket(self) -> Ticket:
        return self.job.ticket

    @property
    def key(self) -> int:
        return self.job.ticket.request

    @property
    def seniority(self) -> tuple[float, int]:
        """Smaller is older; never equal, so that one of two requests can always preempt the other."""
        return self.senior_seconds, self.key

    @property
    def pending(self) -> int:
        """Tokens whose KV the next steps compute."""
        return len(self.tokens) - self.filled

    @property
    def next_position(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def emitted(self) -> list[int]:
        return self.tokens[len(self.job.prompt) :]

    @property
    def sits_out(self) -> bool:
        """True: the next step leaves it out, because what its grammar allows is not known yet."""
        return self.constraint is not None and self.constraint.waits

    @property
    def left(self) -> int:
        """Tokens that it may still emit."""
        return self.job.sampling.max_tokens - self.next_position


class DecodeHost(Protocol):
    """The worker as its parts see it: they report to it through this protocol."""

    @property
    def attached(self) -> bool:
        """Some gateway hears this worker."""

    def admitted(self, request: DecodeRequest) -> None:
        """The request's pages are its own: it runs from now on."""

    def lost(self, request: DecodeRequest, reason: Reason, detail: str = "") -> None:
        """This attempt cannot go on here: the gateway gets Lost."""

    def starved(self, request: DecodeRequest) -> None:
        """A running request finds no page and no younger one can be preempted."""

    def drop(self, request: DecodeRequest) -> None:
        """Forget the request and give its pages back."""

    def wake(self) -> None:
        """Something changed that the loop must look at."""
