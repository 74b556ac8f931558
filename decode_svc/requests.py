"""What a decode worker knows of each request, and which moves between its stages are legal.

The rows of "Landing at decode" in PROTOCOL.md. `tokens` is everything known of the text, `filled` how many of them have
their KV in the pages; the difference is what the next steps compute, one token in decode, a whole prompt when local."""

from dataclasses import dataclass, field
from enum import Enum

from decode_svc.speculation.draft_length import Acceptance
from decode_svc.speculation.lookup import Lookup
from mesh.messages import Commit, Job, Ticket, Token
from mesh.session import Session


class DecodePhase(Enum):
    OPEN = "open"  # known, without pages: prefill's Ready comes, or has got Later
    LANDING = "landing"  # has pages that a prefill worker writes
    LOCAL = "local"  # to be prefilled here, waits for room
    RUNNING = "running"  # owns its pages; in every step from now on
    LOST = "lost"  # its landing was fenced; the gateway was told and will raise the attempt
    ENDED = "ended"


MOVES = {
    DecodePhase.OPEN: {DecodePhase.LANDING, DecodePhase.LOCAL, DecodePhase.ENDED},
    DecodePhase.LANDING: {
        DecodePhase.OPEN,
        DecodePhase.LOCAL,
        DecodePhase.RUNNING,
        DecodePhase.LOST,
        DecodePhase.ENDED,
    },
    DecodePhase.LOCAL: {DecodePhase.OPEN, DecodePhase.RUNNING, DecodePhase.ENDED},
    DecodePhase.RUNNING: {DecodePhase.ENDED},
    DecodePhase.LOST: {DecodePhase.OPEN, DecodePhase.LOCAL, DecodePhase.ENDED},
    DecodePhase.ENDED: set(),
}


@dataclass(frozen=True, slots=True)
class PageOwner:
    """Whose write may still come to a landing or quarantined page."""

    ticket: Ticket
    writer: int  # incarnation of the prefill worker
    transport: str
    round: int


@dataclass(slots=True)
class OpenLanding:
    """The pages one ticket may write, and which of their layers have arrived and been checked."""

    ticket: Ticket
    writer: int
    transport: str
    first_page: int
    pages: tuple[int, ...]
    began_seconds: float
    progress_seconds: float
    valid: list[int]  # per page a bit for every layer
    all_layers: int  # the mask of a valid page
    longest_step_ms: int = 0
    round: int = 0
    commit: Commit | None = None

    @property
    def complete(self) -> bool:
        return all(mask == self.all_layers for mask in self.valid)

    @property
    def sound_pages(self) -> int:
        """How many pages from the first on are valid without a gap."""
        return next((i for i, mask in enumerate(self.valid) if mask != self.all_layers), len(self.valid))

    @property
    def landed(self) -> tuple[int, int]:
        """(layers of pages that are valid, all of them)."""
        return sum(mask.bit_count() for mask in self.valid), len(self.valid) * self.all_layers.bit_count()

    @property
    def owner(self) -> PageOwner:
        return PageOwner(self.ticket, self.writer, self.transport, self.round)


@dataclass(slots=True)
class Drafts:
    """What speculation keeps of one request."""

    next: tuple[int, ...] = ()  # proposed behind the last token, to be verified in the next step
    read: int = 0  # slots whose tokens the draft model has read; beyond `filled` are its own proposals
    acceptance: Acceptance = field(default_factory=Acceptance)
    lookup: Lookup = field(default_factory=Lookup)
    drafted: int = 0  # verified so far
    accepted: int = 0


@dataclass(slots=True)
class DecodeRequest:
    job: Job
    gateway: Session
    phase: DecodePhase
    opened_seconds: float  # on this worker's clock, moved back by the age that Open named
    tokens: list[int]
    prefill: int | None = None  # incarnation; None: local
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the pages published or found
    filled: int = 0
    produced: dict[int, Token] = field(default_factory=dict)  # position -> token, to be emitted again if asked
    passed: int | None = None  # younger landings since it got Later; None: it never did
    landing: OpenLanding | None = None
    landed_from: float = 0.0  # when its landing began
    running_seconds: float = 0.0
    cached: int = 0  # tokens found in the prefix cache when it was prefilled here
    steps: int = 0
    drafts: Drafts = field(default_factory=Drafts)

    @property
    def ticket(self) -> Ticket:
        return self.job.ticket

    @property
    def key(self) -> int:
        return self.job.ticket.request

    @property
    def seniority(self) -> tuple[float, int]:
        """Smaller is older; never equal, so that of two requests one may always preempt the other."""
        return self.opened_seconds, self.key

    @property
    def pending(self) -> int:
        """Tokens whose KV the next steps compute."""
        return len(self.tokens) - self.filled

    @property
    def next_position(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def left(self) -> int:
        """Tokens that it may still emit."""
        return self.job.sampling.max_tokens - self.next_position

    def enter(self, phase: DecodePhase) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"request {self.key}: no move from {self.phase.value} to {phase.value}")
        self.phase = phase
