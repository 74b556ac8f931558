"""The sequencer alone, without real workers: which reports count, and which messages raise an attempt."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from gateway.core import ChoiceRequest
from gateway.requests import GatewayRequest, RequestPhase
from gateway.router import Local
from gateway.sequencer import Sequencer
from gateway.workers import AttachedWorker, Workers
from mesh.errors import BatonError, Cancelled, PoolTooSmall, WorkersDied
from mesh.messages import (
    Cancel,
    End,
    Full,
    FullKind,
    Hello,
    Load,
    Lost,
    Message,
    Open,
    Prefill,
    PrefixChange,
    Reason,
    Sampling,
    Ticket,
    Tier,
    Token,
    TokenOf,
    Tokens,
)
from mesh.rules import RULES
from mesh.telemetry import Silent
from tests.sim.loop import run_virtual


@dataclass
class RecordingSession:
    """A session that keeps what is sent."""

    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)


@dataclass
class Mesh:
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

    def serving(self, request: GatewayRequest) -> tuple[str, str]:
        names = {worker.incarnation: name for name, worker in self.workers.items()}
        assert request.prefill is not None and request.decode is not None
        return names[request.prefill], names[request.decode]


def mesh() -> Mesh:
    workers, named = Workers(), {}
    for incarnation, name in enumerate(("p1", "p2", "d1", "d2"), 1):
        load = Load(free_pages=64, total_pages=64)
        tier = Tier.PREFILL if name[0] == "p" else Tier.DECODE
        hello = Hello(tier, incarnation, name, "a", "print", "m", "0", 4, 4096, load, PrefixChange(0))
        named[name] = AttachedWorker(hello, cast(Any, RecordingSession()), load)
        workers.add(named[name])
    sequencer = Sequencer(
        workers, rules=RULES, random=Random(1), telemetry=Silent(), local=Local.NEVER, patience_seconds=30.0
    )
    return Mesh(sequencer, named)


def error_of(request: GatewayRequest) -> BatonError:
    """The error that ended the request, behind its tokens."""
    while True:
        event = request.events.get_nowait()
        if isinstance(event, BatonError):
            return event


def virtual(test: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            test()

        run_virtual(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
def test_both_workers_get_the_same_ticket() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    (to_prefill,), (to_decode,) = m.sent(prefill), m.sent(decode)
    assert isinstance(to_prefill, Prefill) and isinstance(to_decode, Open)
    assert to_prefill.job.ticket == to_decode.job.ticket == request.ticket
    assert to_decode.prefill_incarnation == m.workers[prefill].incarnation
    assert to_prefill.decode_address == decode


@virtual
def test_only_the_next_position_of_the_current_ticket_is_shown() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    ticket = request.ticket
    assert ticket is not None
    for position in (1, 0, 0, 2, 1, 1):
        m.token(decode, ticket, position)
    m.token(prefill, Ticket(ticket.request, ticket.attempt, bytes(16)), 2)
    m.token(prefill, Ticket(ticket.request, ticket.attempt + 1, ticket.nonce), 2)
    m.token(prefill, Ticket(ticket.request + 1, ticket.attempt, ticket.nonce), 2)
    assert [token.position for token in request.shown] == [0, 1]


@virtual
def test_every_attempt_has_new_random_bits_and_begins_behind_what_was_shown() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    first = request.ticket
    assert first is not None
    m.token(prefill, first, 0)
    m.sent(decode)
    m.sequencer.on_lost(m.workers[decode], Lost(first, Reason.LANDING_LOST))
    assert request.ticket is not None and request.ticket.attempt == 2 and request.ticket.nonce != first.nonce
    (opened,) = m.sent(decode)
    assert isinstance(opened, Open) and opened.job.emitted == (100,) and opened.job.base == 1


@virtual
def test_two_reports_of_one_failure_raise_once() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    old = request.ticket
    assert old is not None
    m.sequencer.on_lost(m.workers[decode], Lost(old, Reason.LANDING_LOST))
    m.sequencer.on_lost(m.workers[prefill], Lost(old, Reason.CANNOT_PUSH))
    m.sequencer.on_full(m.workers[decode], Full(old, FullKind.NOW))
    assert request.ticket is not None and request.ticket.attempt == 2
    assert not request.refused and not request.failed


@virtual
def test_a_worker_that_is_left_out_is_told_to_forget() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    m.sent(prefill)
    ticket = request.ticket
    assert ticket is not None
    m.sequencer.on_lost(m.workers[decode], Lost(ticket, Reason.NO_PROGRESS))
    assert m.serving(request)[0] != prefill and m.serving(request)[1] == decode, "decode is kept, prefill is not"
    assert m.sent(prefill) == [Cancel(request.id, 1)]


@virtual
def test_when_decode_is_lost_prefill_is_kept_because_it_may_hold_the_pages() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    m.end_session(decode)
    assert m.serving(request)[0] == prefill and m.serving(request)[1] != decode


@virtual
def test_prefill_may_go_once_decode_has_shown_that_it_has_the_pages() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    m.token(decode, request.ticket, 0)
    m.end_session(prefill)
    assert request.ticket is not None and request.ticket.attempt == 1 and request.deaths == 0


@virtual
def test_a_token_of_prefill_is_no_hand_over() -> None:
    m = mesh()
    request = m.accept()
    prefill, _ = m.serving(request)
    m.token(prefill, request.ticket, 0)
    m.end_session(prefill)
    assert request.ticket is not None and request.ticket.attempt == 2


@virtual
def test_the_last_token_ends_the_request_and_both_workers_forget_it() -> None:
    m = mesh()
    request = m.accept()
    prefill, decode = m.serving(request)
    m.sent(prefill), m.sent(decode)
    m.token(decode, request.ticket, 0, End.STOP)
    assert request.phase is RequestPhase.DONE and not m.sequencer.requests
    assert m.sent(prefill) == m.sent(decode) == [Cancel(request.id, 1)]
    m.token(decode, request.ticket, 1)
    m.sequencer.end(request, Cancelled("too late"))
    assert len(request.shown) == 1 and request.phase is RequestPhase.DONE and not m.sent(decode)


@virtual
def test_full_ever_everywhere_is_an_error_and_full_now_is_patience() -> None:
    m = mesh()
    never, later = m.accept(prompt_field="text", max_tokens_field="stop.max_tokens"), m.accept()
    for request, kind in ((never, FullKind.EVER), (later, FullKind.NOW)):
        for _ in range(2):
            m.full(request, kind)
    error = error_of(never)
    assert never.phase is RequestPhase.ERROR and isinstance(error, PoolTooSmall)
    assert error.field == "stop.max_tokens" and "stop.max_tokens" in error.message
    assert later.phase is RequestPhase.WAITING
    m.sequencer.on_room(m.workers["d2"])
    assert later.phase is RequestPhase.OPEN and m.serving(later)[1] == "d2"


@virtual
def test_room_at_a_worker_that_can_never_hold_it_changes_nothing() -> None:
    m = mesh()
    request = m.accept()
    small = m.serving(request)[1]
    m.full(request, FullKind.EVER)
    other = m.serving(request)[1]
    m.full(request, FullKind.NOW)
    m.sequencer.on_room(m.workers[small])
    assert request.phase is RequestPhase.WAITING
    m.sequencer.on_room(m.workers[other])
    assert request.phase is RequestPhase.OPEN and m.serving(request)[1] == other


@virtual
def test_the_third_death_is_the_last() -> None:
    m = mesh()
    request = m.accept()
    for _ in range(3):
        assert request.phase is RequestPhase.OPEN
        name = m.serving(request)[1] if len(m.sequencer.workers.tier(Tier.DECODE)) > 1 else m.serving(request)[0]
        m.end_session(name)
    assert request.phase is RequestPhase.ERROR and isinstance(error_of(request), WorkersDied)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_lost_moves_the_request_on(reason: Reason) -> None:
    async def main() -> None:
        m = mesh()
        request = m.accept()
        prefill, decode = m.serving(request)
        reporter = prefill if reason in (Reason.CANNOT_PUSH, Reason.TOO_LARGE) else decode
        assert request.ticket is not None
        m.sequencer.on_lost(m.workers[reporter], Lost(request.ticket, reason))
        assert request.phase is RequestPhase.OPEN and request.ticket.attempt == 2
        assert (m.serving(request)[0] == prefill) == (reason is Reason.PREEMPTED)

    run_virtual(main())
