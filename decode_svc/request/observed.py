"""A decode worker records of one attempt its landing, its wait for a step, a prompt computed here, and tokens.

The phases `kv.reserve`, `kv.receive`, `queue`, `compute`, `generate` follow each other without a gap. For a token only
the time of its step is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub

from decode_svc.speculation.drafts import Drafts
from engine.model.floor import NO_FLOOR, Floor
from engine.step.plan import Piece
from mesh.messages.jobs import Reason
from mesh.sessions.legs import UNRECORDED, Recorder, StepCompany
from mesh.telemetry import semconv


@dataclass(slots=True)
class AttemptRecord:
    leg: Recorder = UNRECORDED
    base: int = 0  # tokens that the client had when the attempt began
    floor: Floor = NO_FLOOR
    prompt_tokens: int = 0
    times: list[float] = field(default_factory=list)  # when steps yielded tokens
    tokens: int = 0
    generates: bool = False  # the current phase is `generate`, as in nearly all steps
    company: StepCompany = field(default_factory=StepCompany)

    def opened(self, now: float, *, local: bool) -> None:
        self.leg.enter(semconv.QUEUE if local else semconv.KV_RESERVE, now)

    def lands(self, now: float, pages: int, page_bytes: int, transport: str) -> None:
        self.leg.enter(semconv.KV_RECEIVE, now)
        size = {semconv.KV_PAGES: pages, semconv.KV_BYTES: pages * page_bytes}
        self.leg.note({**size, semconv.KV_TRANSPORT: transport})

    def declined(self, now: float) -> None:
        """Prefill gave the landing back and asks again."""
        self.leg.enter(semconv.KV_RESERVE, now)

    def admitted(self, now: float) -> None:
        self.leg.enter(semconv.QUEUE, now)

    def continues(self, now: float) -> None:
        """An earlier attempt runs here already: this one goes on with its pages."""
        self._generates(now)

    def step_begins(self, now: float, piece: Piece) -> None:
        if piece.sampled < len(piece.tokens):
            self.leg.enter(semconv.COMPUTE, now)
            self.generates = False
        elif not self.generates:
            self._generates(now)

    def step_ends(self, now: float, piece: Piece, tokens: int, cached: int, batch: int) -> None:
        """The loop has read a step that has rows of this request, one of `batch`."""
        if not self.leg.recording:
            return
        self.company.count(batch)
        if self.generates and self.times and tokens:  # nearly always
            self.tokens += tokens
            self.times.append(now)
            return
        if piece.sampled < len(piece.tokens):
            self.leg.event(semconv.CHUNK, now, {semconv.TOKENS: len(piece.tokens), semconv.CACHED: cached})
            self.leg.note(self.company.attributes)
        if tokens:
            self.tokens += tokens
            self.times.append(now)
            if len(self.times) == 1:
                self._generates(now)
                self.leg.event(semconv.FIRST_TOKEN, now)

    def lost(self, now: float, reason: Reason) -> None:
        self.leg.note({semconv.LOST: reason.value})
        if reason is Reason.PREEMPTED:
            self.leg.event(semconv.PREEMPTED, now)

    def ended(self, now: float, steps: int = 0, drafts: Drafts | None = None) -> None:
        if self.leg.recording and self.times:
            guessed = {semconv.DRAFTED: drafts.drafted, semconv.ACCEPTED: drafts.accepted} if drafts else {}
            self.leg.note({semconv.STEPS: steps, semconv.TOKENS: self.tokens, **guessed, **intervals(self.times)})
            self.leg.note(self.company.attributes)
            least = self.floor.answer_seconds(steps, self.prompt_tokens + self.base, self.tokens)
            if least is not None:
                self.leg.note({semconv.FLOOR: least})
        self.leg.end(now)

    def _generates(self, now: float) -> None:
        self.generates = True
        begins = self.leg.enter(semconv.GENERATE, now)
        if begins:
            self.company = StepCompany()
            if self.base:
                self.leg.event(semconv.RESUMED, now)


def intervals(times: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile of the time between two steps that yield tokens."""
    gaps = sorted(map(sub, times[1:], times))
    if not gaps:
        return {}
    return {semconv.ITL_P50: gaps[len(gaps) // 2], semconv.ITL_P99: gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]}
