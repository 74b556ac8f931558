"""A prefill worker records of one prompt its waiting, the landing's reservation, its chunks, and its transfer.

The phases `queue`, `kv.reserve`, `queue`, `compute` follow each other; `kv.send` lies beside them, from the first write
to Commit. The part of it behind the first token is what the client waits for: the exposed part."""

from dataclasses import dataclass, field

from engine.model.floor import NO_FLOOR, Floor
from mesh.sessions.legs import UNRECORDED, Recorder, StepCompany
from mesh.telemetry import semconv


@dataclass(slots=True)
class PromptRecord:
    leg: Recorder = UNRECORDED
    floor: Floor = NO_FLOOR
    asked_before: bool = False  # Ready was sent at least once
    company: StepCompany = field(default_factory=StepCompany)
    first_write_seconds: float | None = None
    first_token_seconds: float | None = None

    def queued(self, now: float) -> None:
        self.leg.enter(semconv.QUEUE, now)

    def asked(self, now: float) -> None:
        """Ready is sent: from here to Landing the prompt waits for decode, not for its turn."""
        if not self.asked_before:
            self.asked_before = True
            self.leg.enter(semconv.KV_RESERVE, now)

    def landed(self, now: float) -> None:
        self.leg.enter(semconv.QUEUE, now)

    def step_begins(self, now: float) -> None:
        self.leg.enter(semconv.COMPUTE, now)

    def chunk(self, now: float, tokens: int, cached: int, batch: int) -> None:
        """A step has computed a chunk; it was one of `batch` in that step."""
        if self.leg.recording:
            self.company.count(batch)
            self.leg.note(self.company.attributes)
            self.leg.event(semconv.CHUNK, now, {semconv.TOKENS: tokens, semconv.CACHED: cached})

    def first_token(self, now: float, tokens: int, cached: int) -> None:
        self.first_token_seconds = now
        self.leg.note({semconv.TOKENS: tokens, semconv.CACHED: cached})
        self.leg.note(self._least(self.floor.prompt_seconds(tokens, cached)))
        self.leg.event(semconv.FIRST_TOKEN, now)
        self.leg.leave(now)

    def writes(self, now: float) -> None:
        if self.first_write_seconds is None:
            self.first_write_seconds = now

    def committed(
        self, now: float, *, written: int, before_first: int, pages: int, transport: str, resends: int
    ) -> None:
        """Every write of a round is complete. A round after a Resend is a further `kv.send`."""
        if not self.leg.recording or self.first_token_seconds is None:
            return
        began = self.first_token_seconds if self.first_write_seconds is None else self.first_write_seconds
        self._sent(
            began,
            now,
            {
                semconv.KV_BYTES: written,
                semconv.KV_PAGES: pages,
                semconv.KV_TRANSPORT: transport,
                semconv.KV_HIDDEN: before_first / written if written else 1.0,
                semconv.KV_EXPOSED: max(0.0, now - max(began, self.first_token_seconds)),
                semconv.KV_ROUNDS: resends,
                **self._least(self.floor.copy_seconds(written)),
            },
        )

    def stopped(self, now: float, written: int) -> None:
        """The prompt is over; writes that no Commit has covered are shown as far as they came."""
        if self.leg.recording and self.first_write_seconds is not None:
            self._sent(self.first_write_seconds, now, {semconv.KV_BYTES: written})
        self.leg.end(now)

    @staticmethod
    def _least(seconds: float | None) -> dict[str, float]:
        return {} if seconds is None else {semconv.FLOOR: seconds}

    def _sent(self, began: float, now: float, attributes: dict[str, str | int | float]) -> None:
        self.leg.beside(semconv.KV_SEND, began, now, attributes)
        self.first_write_seconds = None
