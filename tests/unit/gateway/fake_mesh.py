"""A sequencer with two fake workers of each tier: their sessions record the messages that they get."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from gateway.core.interface import ChoiceRequest
from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.sequencing.admission_control import AdmissionControl
from gateway.sequencing.observer import UNOBSERVED, RequestObserver
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.sequencer import Sequencer
from gateway.workers.attached import AttachedWorker
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError
from mesh.messages.jobs import End, FullKind, Sampling, Ticket, Tier, Token
from mesh.messages.message import Message
from mesh.messages.reports import Full, Hello, Load, PrefixChange, TokenOf, Tokens
from mesh.rules import RULES


@dataclass
class RecordingSession:
    """A session that records what is sent."""

    sent: list[Message] = field(default_factory=list)
    heard_seconds: float = 0.0
    ended_there: bool = True
    expired: bool = False
    name: str = "worker"

    def send(self, message: Message) -> None:
        self.sent.append(message)


@dataclass
class SequencerMesh:
    """A sequencer with two workers of each tier, and the messages that they got."""

    sequencer: Sequencer
    workers: dict[str, AttachedWorker]

    def sent(self, name: str) -> list[Message]:
        """Messages to this worker since the last call."""
        session = cast(RecordingSession, self.workers[name].session)
        sent, session.sent = session.sent, []
        return sent

    def end_session(self, name: str) -> None:
        self.sequencer.workers.remove(self.workers[name])
        self.sequencer.on_session_end(self.workers[name])

    def accept(self, prompt: int = 10, max_tokens: int = 5, **more: Any) -> GatewayRequest:
        choice = ChoiceRequest("r", "m", tuple(range(prompt)), (), Sampling(max_tokens=max_tokens), **more)
        return self.sequencer.accept(choice)

    def token(self, name: str, ticket: Ticket | None, position: int, end: End = End.NONE) -> None:
        """This worker sends one token."""
        assert ticket is not None
        token = Token(position, 100 + position, end=end)
        self.sequencer.on_tokens(self.workers[name], Tokens((TokenOf(ticket, token),)))

    def full(self, request: GatewayRequest, kind: FullKind) -> None:
        """The request's decode worker refuses it."""
        assert request.ticket is not None
        self.sequencer.on_full(self.workers[self.serving(request)[1]], Full(request.ticket, kind))

    def room(self, name: str) -> None:
        """The worker reports one free page more."""
        worker = self.workers[name]
        worker.report(replace(worker.load, free_pages=worker.load.free_pages + 1))
        self.sequencer.on_room(worker)

    def serving(self, request: GatewayRequest) -> tuple[str, str]:
        names = {worker.incarnation: name for name, worker in self.workers.items()}
        assert request.prefill is not None and request.decode is not None
        return names[request.prefill], names[request.decode]


def mesh(
    observer: RequestObserver = UNOBSERVED, *, reader_bytes: int = DoorConfig().reader_bytes, model: str = ""
) -> SequencerMesh:
    workers, named = Workers(), {}
    for incarnation, name in enumerate(("p1", "p2", "d1", "d2"), 1):
        load = Load(free_pages=64, total_pages=64)
        tier = Tier.PREFILL if name[0] == "p" else Tier.DECODE
        hello = Hello(tier, incarnation, name, "a", "print", "m", "0", 4, 4096, load, PrefixChange(0))
        named[name] = AttachedWorker(hello, cast(Any, RecordingSession()), load, model=model)
        workers.add(named[name])
    sequencer = Sequencer(
        workers,
        rules=RULES,
        random=Random(1),
        local=Local.NEVER,
        patience_seconds=30.0,
        reader_bytes=reader_bytes,
        observer=observer,
    )
    return SequencerMesh(sequencer, named)


def control(made: SequencerMesh, *, local: Local = Local.NEVER, **more: Any) -> AdmissionControl:
    """Admission by the waits at these workers, of which no model lacks any."""
    usual: dict[str, Any] = {"max_waiting": 100, "queue_seconds": 10.0}
    sequencer = made.sequencer
    return AdmissionControl(sequencer.workers, sequencer.tally, lambda now, model: None, local=local, **usual | more)


def served() -> tuple[SequencerMesh, GatewayRequest, str, str]:
    """A mesh with one request, and the names of the prefill and the decode worker that have it."""
    made = mesh()
    request = made.accept()
    return made, request, *made.serving(request)


def error_of(request: GatewayRequest) -> BatonError:
    """The error that ended the request, behind its tokens."""
    while True:
        event = request.unread.take()
        if isinstance(event, BatonError):
            return event
