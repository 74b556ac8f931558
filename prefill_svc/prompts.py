"""What a prefill worker knows of each prompt, and which moves between its stages are legal.

The table "Prompt at prefill" of PROTOCOL.md. Nothing is reserved while a prompt waits: own pages are taken when
decode's Landing has come, and they stay until Landed or the end, so that a repair costs a copy and not a prefill."""

from dataclasses import dataclass, field
from enum import Enum

from mesh.messages import Job, Landing, Ticket, Token
from mesh.session import Session


class PromptPhase(Enum):
    QUEUED = "queued"  # waits for its turn to ask, or for the answer Later to age
    ASKED = "asked"  # Ready is out, unanswered
    PUSHING = "pushing"  # a landing is open: computing, or writes are under way
    HELD = "held"  # Commit is out; the pages wait for Landed or a Resend
    STOPPING = "stopping"  # over, but a write is still in flight; Quiet and the pages wait for it
    ENDED = "ended"


MOVES = {
    PromptPhase.QUEUED: {PromptPhase.ASKED, PromptPhase.PUSHING, PromptPhase.STOPPING},
    PromptPhase.ASKED: {PromptPhase.QUEUED, PromptPhase.PUSHING, PromptPhase.STOPPING},
    PromptPhase.PUSHING: {PromptPhase.HELD, PromptPhase.STOPPING},
    PromptPhase.HELD: {PromptPhase.PUSHING, PromptPhase.STOPPING},
    PromptPhase.STOPPING: {PromptPhase.ENDED},
    PromptPhase.ENDED: set(),
}


@dataclass(slots=True)
class Prompt:
    key: int  # this worker's own name for it
    job: Job
    gateway: Session
    decode_address: str
    decode_incarnation: int
    queued_seconds: float
    phase: PromptPhase = PromptPhase.QUEUED
    asked_seconds: float = 0.0
    ask_again_seconds: float = 0.0  # not before this time
    landing: Landing | None = None
    pages: tuple[int, ...] = ()  # own pages for every token
    copies: tuple[tuple[int, int], ...] = ()  # (shared page, own copy), to be made in the next step
    done: int = 0  # tokens whose KV is in the pages
    cached: int = 0  # of these, from the prefix cache
    hashes: list[bytes] = field(default_factory=list)
    in_flight: int = 0  # writes posted and not complete
    round: int = 0  # Resends so far
    first: Token | None = None
    committed: bool = False  # at least once
    quiet_due: bool = False
    landed_seconds: float = 0.0
    told_seconds: float = 0.0  # when decode was told last that it is computing
    compute_seconds: float | None = None  # when its first step began
    first_seconds: float = 0.0
    bytes_written: int = 0
    bytes_before_first: int = 0  # written when the first token was sampled

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

    def enter(self, phase: PromptPhase) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"prompt {self.ticket.request}: no move from {self.phase.value} to {phase.value}")
        self.phase = phase
