"""State of each choice at the gateway, and the legal moves between its phases.

The moves are those of the table "Request at the gateway" in docs/protocol.md. The sequencer alone owns these objects.
`shown` is law: a token that the client has seen is never taken back, and every later attempt begins after it."""

import asyncio
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gateway.core.interface import ChoiceRequest
from gateway.sequencing.unread import UnreadTokens
from gateway.tracing.record import ChoiceRecord
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError
from mesh.messages.hashing import next_hashes
from mesh.messages.jobs import End, FullKind, Job, Ticket
from mesh.messages.reports import Embedded, Prefilled, Scored

BEHIND_STEPS = 5  # steps of priority, each worth `priority_seconds`, by which a request's first choice is ahead
READER_BEHIND = "reader_behind"  # why an attempt is left when its request pauses, in traces and metrics


class RequestPhase(Enum):
    WAITING = (
        "waiting"  # no worker has it: it waits for a worker, for room, or for its turn (gateway/sequencing/lines.py)
    )
    OPEN = "open"  # a decode worker has it, and a prefill worker unless decode prefills; an examination has one worker
    PAUSED = "paused"  # its reader is behind: no worker has it until the reader has taken what is held
    DONE = "done"  # the client has the last token
    CANCELLED = "cancelled"  # the client left, or has enough
    ERROR = "error"  # the client got an error instead of further tokens


MOVES = {
    RequestPhase.WAITING: {RequestPhase.OPEN, RequestPhase.CANCELLED, RequestPhase.ERROR},
    RequestPhase.OPEN: {
        RequestPhase.OPEN,  # the next attempt
        RequestPhase.WAITING,
        RequestPhase.PAUSED,
        RequestPhase.DONE,
        RequestPhase.CANCELLED,
        RequestPhase.ERROR,
    },
    RequestPhase.PAUSED: {RequestPhase.OPEN, RequestPhase.WAITING, RequestPhase.CANCELLED, RequestPhase.ERROR},
    RequestPhase.DONE: set(),
    RequestPhase.CANCELLED: set(),
    RequestPhase.ERROR: set(),
}


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker that was computing a request."""

    incarnation: int
    seconds: float  # when the gateway noticed it
    tokens: int  # that the client got from the attempt that ended with it


class StartLimit(NamedTuple):
    """The time within which a worker has to begin a request."""

    seconds: float
    of_queue: bool  # no request waits longer; else: too little is left until its deadline then


@dataclass(slots=True)
class GatewayRequest:
    choice: ChoiceRequest
    id: int
    accepted_seconds: float
    trace: ChoiceRecord
    unread: UnreadTokens  # what the front door has not taken yet
    phase: RequestPhase = RequestPhase.WAITING
    turn_seconds: float | None = None  # when its turn came among the choices of its client's request; None: not yet
    behind: bool = False  # other choices of its client's request came before it
    ticket: Ticket | None = None  # ticket of the current attempt; None before the first attempt
    shown: "array[int]" = field(default_factory=lambda: array("I"))  # ids sent to the client, after `choice.emitted`
    next_position: int = 0  # position of the next token to be shown
    last_end: End = End.NONE  # end that the last token of `shown` brought
    prefill: int | None = None  # incarnation of the prefill worker; None: decode prefills itself
    decode: int | None = None  # incarnation of the decode worker
    opened_seconds: float = 0.0  # when the current attempt began
    base: int = 0  # position of the first token of the current attempt
    handed: bool = False  # decode has sent a token of this attempt, so it has the pages
    begun: int | None = None  # incarnation of the worker whose first step of this attempt began last
    begun_seconds: float = 0.0  # when the gateway learned that
    numerics: str = ""  # numerics class of the latest token
    classes: list[tuple[int, str]] = field(default_factory=list)  # each class that came, at its first position
    prefilled: Prefilled | None = None  # timings of the prompt's first prefill
    refused: dict[int, FullKind] = field(default_factory=dict)  # workers without room for it, by incarnation
    free_pages: dict[int, int] = field(default_factory=dict)  # fewest free pages since a refusal for now, by worker
    failed: dict[tuple[int, int], int] = field(default_factory=dict)  # (prefill, decode): failed pushes
    complete: bool = False  # the client has its whole answer, though the workers would go on
    deaths: list[Death] = field(default_factory=list)  # deaths of workers that were computing it
    lost_from: Death | None = None  # the end of the last worker that computed it, if its landing was lost with that one
    first_token_seconds: float | None = None
    shown_seconds: float = 0.0  # when the latest tokens came
    handed_seconds: float | None = None  # when decode went on for the first time, in whichever attempt
    ended_seconds: float | None = None
    error: BatonError | None = None  # that ended it
    findings: list[Scored | Embedded] = field(default_factory=list)  # an examination's reports, of the current attempt
    over: asyncio.Event = field(default_factory=asyncio.Event)  # set at its end
    lacks_adapter: set[int] = field(default_factory=set)  # workers that lack its adapter, though they had it once
    start: StartLimit | None = None  # a worker gives it back if nothing of it is computed by then; None: it waits
    deadline: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None  # ends the wait for a worker

    def __post_init__(self) -> None:
        self.next_position = len(self.choice.emitted)

    def stop_waiting(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def enter(self, phase: RequestPhase) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"request {self.id}: no move from {self.phase.value} to {phase.value}")
        self.phase = phase

    @property
    def ended(self) -> bool:
        return not MOVES[self.phase]

    @property
    def path(self) -> str:
        """How the prompt was computed: "remote", "local", "resumed" with more than one attempt, "none" before any."""
        if self.ticket is None:
            return "none"
        if self.ticket.attempt > 1 or (self.decode is None and self.prefill is None):
            return "resumed"
        return "local" if self.prefill is None else "remote"

    def computed_in(self, numerics: str) -> bool:
        """The next token comes from a worker of this numerics class. Says whether the token before did, too."""
        if numerics == self.numerics and self.classes:
            return True
        self.classes.append((self.next_position, numerics))
        self.numerics = numerics
        return False

    def is_next(self, position: int) -> bool:
        """Rule [position]: only the next position is shown. Prefill and decode send the same positions over two
        streams, so without this rule the client would see a token twice or miss one."""
        return position == self.next_position

    def show(self, token: int) -> None:
        """The token of the next position is shown."""
        self.shown.append(token)
        self.next_position += 1

    @property
    def emitted(self) -> tuple[int, ...]:
        """Every token that the client has, those that it brought along included."""
        return self.choice.emitted + tuple(self.shown)

    @property
    def finish(self) -> str:
        """How the request ended, if it ended well; an examination stops at the end of its prompt."""
        return self.last_end.value if self.shown else End.STOP.value

    def seniority(self, priority_seconds: float) -> tuple[float, int]:
        """Smaller is older. A step of priority is worth `priority_seconds` of waiting."""
        return self.entered_seconds + self.priority * priority_seconds, self.id

    @property
    def entered_seconds(self) -> float:
        """The time from which its age counts: choices of one request take turns, so none is older than its turn."""
        return self.accepted_seconds if self.turn_seconds is None else self.turn_seconds

    @property
    def priority(self) -> int:
        """The client's priority, and some steps less for choices behind the first: others' requests overtake them."""
        return self.choice.priority + BEHIND_STEPS * self.behind

    @property
    def pace_seconds(self) -> float | None:
        """Seconds between two of its tokens so far; None: it has fewer than two."""
        shown, first = len(self.shown), self.first_token_seconds
        return None if shown < 2 or first is None else max(0.0, self.shown_seconds - first) / (shown - 1)

    def begin(self, ticket: Ticket, now: float) -> None:
        """The next attempt begins; no worker has done anything for it yet."""
        self.ticket = ticket
        self.opened_seconds = now
        self.base = self.next_position
        self.handed, self.begun = False, None
        self.stop_waiting()

    @property
    def awaited(self) -> int | None:
        """Incarnation of the worker whose work the request waits for: prefill until its first token, then decode."""
        if self.prefill is None:
            return self.decode
        past_prefill = self.handed or self.begun == self.decode or self.next_position > self.base
        return self.decode if self.decode is not None and past_prefill else self.prefill

    @property
    def moved_seconds(self) -> float:
        """When its present stage began: its attempt began, its turn came at a worker, or a token was shown. Before that
        it waited for something else, such as room at decode, or for another worker."""
        return max(self.opened_seconds, self.begun_seconds, self.shown_seconds)

    def next_ticket(self, nonce: bytes) -> Ticket:
        return Ticket(self.id, self.ticket.attempt + 1 if self.ticket else 1, nonce)

    def job(self, now: float) -> Job:
        """The current attempt as both tiers receive it, but for the trace context, which differs. The deadline shrinks
        with every attempt."""
        assert self.ticket is not None, "an attempt has a ticket"
        choice, age_seconds = self.choice, now - self.accepted_seconds
        left = None if choice.deadline_seconds is None else max(0.0, choice.deadline_seconds - age_seconds)
        first = self.ticket.attempt == 1 and not self.shown  # later ones begin anew what was lost
        return Job(
            ticket=self.ticket,
            prompt=choice.prompt,
            emitted=self.emitted,
            sampling=choice.sampling,
            deadline_seconds=left,
            salt=choice.salt,
            adapter=choice.digest,
            priority=self.priority,
            start_seconds=self.start.seconds if first and self.start else None,
        )

    def cached_tokens(self, worker: AttachedWorker) -> int:
        """Number of prompt tokens, in whole pages, that the worker's prefix cache holds."""
        if not worker.prefix:
            return 0
        numerics, page_tokens = key = (worker.hello.numerics, worker.hello.page_tokens)
        choice = self.choice
        prompt, known = choice.prompt, choice.hashes.setdefault(key, [])
        known += next_hashes(prompt, page_tokens=page_tokens, numerics=numerics, salt=choice.cache_salt, known=known)
        return next((i for i, block in enumerate(known) if block not in worker.prefix), len(known)) * page_tokens
