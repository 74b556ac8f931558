"""State of one prompt under examination at a worker: its phase, its pages, and what its next chunk wants to know.

`engine/examining/examinations.py` makes the moves; docs/examinations.md says what an examination is."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from engine.adapters.held import MODEL_ALONE, AnyLease
from engine.step.batch import Chunk
from engine.step.plan import WantedRows
from mesh.messages.jobs import Job, Pooling
from mesh.messages.orders import Examination
from mesh.sessions.legs import UNRECORDED, Recorder, StepCompany
from mesh.sessions.session import Session

Seniority = tuple[float, int]  # smaller is older


class ExamPhase(Enum):
    WAITING = "waiting"  # it has no pages
    COMPUTING = "computing"  # it has all its pages; steps compute it
    STOPPING = "stopping"  # it is over; its pages wait for the step that runs now
    ENDED = "ended"  # its pages are released and the worker has forgotten it


MOVES = {
    ExamPhase.WAITING: {ExamPhase.COMPUTING, ExamPhase.ENDED},
    ExamPhase.COMPUTING: {ExamPhase.STOPPING, ExamPhase.ENDED},
    ExamPhase.STOPPING: {ExamPhase.ENDED},
    ExamPhase.ENDED: set[ExamPhase](),
}


@dataclass(slots=True)
class ExaminedPrompt:
    key: int  # the worker's own number for it
    job: Job
    examination: Examination
    gateway: Session
    arrived_seconds: float
    seniority: Seniority
    phase: ExamPhase = ExamPhase.WAITING
    pages: tuple[int, ...] = ()
    hashes: list[bytes] = field(default_factory=list)  # block hashes of its full pages
    cached: int = 0  # tokens that the prefix cache had
    done: int = 0  # tokens whose KV is in the pages
    scored: int = 0  # entries that the gateway has
    pooled: bytes = b""  # what the steps so far have made of the hidden states
    compute_seconds: float | None = None  # when its first step began
    deadline: asyncio.TimerHandle | None = None
    adapter: AnyLease = MODEL_ALONE  # what is added to the model for it; no step computes it before it is ready
    leg: Recorder = UNRECORDED
    company: StepCompany = field(default_factory=StepCompany)

    @property
    def total(self) -> int:
        return len(self.job.prompt)

    @property
    def needs_every_row(self) -> bool:
        """The final hidden states of all rows count, so none may be skipped because its page is cached."""
        return self.examination.pooling is not Pooling.LAST

    def wanted(self, chunk: Chunk) -> WantedRows | None:
        """The question that a chunk's step is to answer; None: its keys and values are enough."""
        match self.examination.pooling:
            case Pooling.LAST:
                return WantedRows(pooling=Pooling.LAST) if chunk.last else None
            case Pooling.MEAN:
                return WantedRows(pooling=Pooling.MEAN, before=self.pooled)
        following = self.job.prompt[chunk.first + 1 : chunk.first + chunk.count + 1]
        return WantedRows(following, self.examination.top)

    def enter(self, phase: ExamPhase) -> None:
        if phase not in MOVES[self.phase]:
            what = f"no move from {self.phase.value} to {phase.value}"
            raise ValueError(f"examination {self.job.ticket.request}: {what}")
        self.phase = phase
