"""A worker's record of one attempt of a request, a leg: phases, one after the other, on the worker's own clock.

Nothing is exported here. When the leg is over, it travels to the gateway in the next `Phases` message. Phases follow
each other without a gap, so a leg has no hole by construction. A job without a sampled traceparent gets a recorder that
does nothing."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mesh.messages.jobs import Job
from mesh.messages.reports import Leg, Phase, PhaseEvent, Phases
from mesh.sessions.session import Session
from mesh.telemetry.semconv import BATCH, ENGINE_STEP, LOOP_BLOCKED, ROWS, SHARED_STEPS, STEP
from mesh.telemetry.spans import Attribute, Attributes, parse_traceparent
from mesh.timing.loop_monitor import LoopMonitor

BEFORE_SECONDS = 0.05  # a loop that stood still up to so short before a leg began may have delayed its arrival


class Recorder(Protocol):
    """Records one leg."""

    recording: bool

    def enter(self, name: str, now: float) -> bool:
        """The current phase is over and this one begins. False: it is the current one already."""

    def leave(self, now: float) -> None:
        """The current phase is over and none begins: others run beside."""

    def note(self, attributes: Attributes) -> None:
        """Attributes of the current phase."""

    def event(self, name: str, now: float, attributes: Attributes | None = None) -> None:
        """Something has happened in the current phase."""

    def beside(self, name: str, start: float, end: float, attributes: Attributes) -> None:
        """A phase that overlaps others."""

    def end(self, now: float) -> None:
        """The leg is over: report it; only the first call counts."""


class Unrecorded:
    """Records nothing."""

    recording = False

    def enter(self, name: str, now: float) -> bool:
        return False

    def leave(self, now: float) -> None:
        pass

    def note(self, attributes: Attributes) -> None:
        pass

    def event(self, name: str, now: float, attributes: Attributes | None = None) -> None:
        pass

    def beside(self, name: str, start: float, end: float, attributes: Attributes) -> None:
        pass

    def end(self, now: float) -> None:
        pass


UNRECORDED = Unrecorded()


class LegRecorder:
    recording = True

    def __init__(self, outbox: "Outbox", gateway: Session, job: Job, now: float) -> None:
        self._outbox, self._gateway, self._ticket, self._began = outbox, gateway, job.ticket, now
        self._phases: list[Phase] = []
        self._name, self._since = "", now  # the current phase; empty: none
        self._attributes: dict[str, Attribute] = {}
        self._events: list[PhaseEvent] = []
        self._ended = False

    def enter(self, name: str, now: float) -> bool:
        if name == self._name:
            return False
        self.leave(now)
        self._name, self._since = name, now
        return True

    def leave(self, now: float) -> None:
        if self._name:
            events = tuple(self._events)
            self._phases.append(Phase(self._name, self._since, now, to_json(self._attributes), events))
        self._name, self._attributes, self._events = "", {}, []

    def note(self, attributes: Attributes) -> None:
        self._attributes.update(attributes)

    def event(self, name: str, now: float, attributes: Attributes | None = None) -> None:
        self._events.append(PhaseEvent(name, now, to_json(attributes or {})))

    def beside(self, name: str, start: float, end: float, attributes: Attributes) -> None:
        self._phases.append(Phase(name, start, end, to_json(attributes)))

    def end(self, now: float) -> None:
        if not self._ended:
            self._ended = True
            self.leave(now)
            self._outbox.send(self._gateway, Leg(self._ticket, self._began, now, tuple(self._phases)))


@dataclass(slots=True)
class StepCompany:
    """How many requests were in the steps of one stage of a request."""

    fullest: int = 0
    shared: int = 0  # steps that computed other requests too

    def count(self, batch: int) -> None:
        if batch > 1:
            self.shared += 1
        if batch > self.fullest:
            self.fullest = batch

    @property
    def attributes(self) -> dict[str, int]:
        return {BATCH: self.fullest, SHARED_STEPS: self.shared}


class Outbox:
    """Finished legs and sampled steps on their way to gateways: one message for all that end at the same moment. They
    do not wait for others: a worker that is killed now has reported every request whose client has its answer."""

    def __init__(self, monitor: LoopMonitor) -> None:
        self._monitor = monitor
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Session, tuple[list[Leg], list[Phase]]] = {}

    def recorder(self, gateway: Session, job: Job, now: float) -> Recorder:
        """The recorder of a job that has just arrived."""
        context = parse_traceparent(job.traceparent) if job.traceparent else None
        if context is None or not context.sampled:
            return UNRECORDED
        self._monitor.begin()
        return LegRecorder(self, gateway, job, now)

    def send(self, gateway: Session, leg: Leg) -> None:
        blocked = self._monitor.end(leg.start_seconds - BEFORE_SECONDS)
        if blocked:
            phases = (Phase(LOOP_BLOCKED, *interval) for interval in blocked)
            leg = Leg(leg.ticket, leg.start_seconds, leg.end_seconds, (*leg.phases, *phases))
        self._of(gateway)[0].append(leg)

    def step(self, gateway: Session, step: Phase) -> None:
        self._of(gateway)[1].append(step)

    def _of(self, gateway: Session) -> tuple[list[Leg], list[Phase]]:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        return self._waiting.setdefault(gateway, ([], []))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for gateway, (legs, steps) in waiting.items():
            gateway.send(Phases(tuple(legs), tuple(steps)))


_JSON = msgspec.json.Encoder()


def to_json(attributes: Mapping[str, Attribute]) -> str:
    return _JSON.encode(attributes).decode() if attributes else ""


class StepSampler:
    """Records one of `share` steps, with links to the requests that it computes; 0: none."""

    def __init__(self, outbox: Outbox, share: int) -> None:
        self._outbox, self._share = outbox, share
        self._steps = 0

    def due(self) -> bool:
        """Called once for each step: whether this one is recorded."""
        self._steps += 1
        return bool(self._share) and self._steps % self._share == 0

    def record(
        self, began: float, now: float, requests: Sequence[tuple[Session, Job]], *, step: int, rows: int
    ) -> None:
        linked = [(gateway, job.traceparent) for gateway, job in requests if job.traceparent]
        if linked:
            attributes = to_json({STEP: step, ROWS: rows, BATCH: len(requests)})
            links = tuple(traceparent for _, traceparent in linked)
            self._outbox.step(linked[0][0], Phase(ENGINE_STEP, began, now, attributes, links=links))
