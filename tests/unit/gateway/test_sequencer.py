"""The sequencer alone, without any worker: which reports count, and what is said to whom when an attempt is raised."""

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
from mesh.errors import BatonError, PoolTooSmall, WorkersDied
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
from mesh.telemetry import SilentRoot
from tests.sim.loop import run_virtual


@dataclass
class Heard:
    """A session whose other end is the test."""

    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)


@dataclass
class Desk:
    """A sequencer with two workers of each tier, and what they were told."""

    sequencer: Sequencer
    workers: dict[str, AttachedWorker]
    ended: list[BatonError | None]

    def told(self, name: str) -> list[Message]:
        heard = cast(Heard, self.workers[name].session)
        sent, heard.sent = heard.sent, []
        return sent

    def gone(self, name: str) -> None:
        self.sequencer.workers.remove(self.workers[name])
        self.sequencer.on_end(self.workers[name])

    def ask(self, prompt: int = 10, max_tokens: int = 5) -> GatewayRequest:
        spec = ChoiceRequest("r", "m", tuple(range(prompt)), (), Sampling(max_tokens=max_tokens))
        return self.sequencer.accept(spec, SilentRoot(""))

    def say(self, name: str, ticket: Ticket | None, position: int, end: End = End.NONE) -> None:
        assert ticket is not None
        token = Token(position, 100 + position, end=end)
        self.sequencer.on_tokens(self.workers[name], Tokens((TokenOf(ticket, token),)))

    def serving(self, request: GatewayRequest) -> tuple[str, str]:
        names = {worker.incarnation: name for name, worker in self.workers.items()}
        assert request.prefill is not None and request.decode is not None
        return names[request.prefill], names[request.decode]


def desk() -> Desk:
    workers, ended = Workers(), list[BatonError | None]()
    named = {}
    for incarnation, name in enumerate(("p1", "p2", "d1", "d2"), 1):
        load = Load(free_pages=64, total_pages=64)
        tier = Tier.PREFILL if name[0] == "p" else Tier.DECODE
        hello = Hello(tier, incarnation, name, "a", "print", "m", "0", 4, 4096, load, PrefixChange(0))
        named[name] = AttachedWorker(hello, cast(Any, Heard()), load)
        workers.add(named[name])
    sequencer = Sequencer(
        workers,
        rules=RULES,
        random=Random(1),
        local=Local.NEVER,
        patience_seconds=30.0,
        on_end=lambda request, error: ended.append(error),
    )
    return Desk(sequencer, named, ended)


def virtual(test: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            test()

        run_virtual(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
def test_both_workers_get_the_same_ticket() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    (to_prefill,), (to_decode,) = d.told(prefill), d.told(decode)
    assert isinstance(to_prefill, Prefill) and isinstance(to_decode, Open)
    assert to_prefill.job.ticket == to_decode.job.ticket == request.ticket
    assert to_decode.prefill_incarnation == d.workers[prefill].incarnation
    assert to_prefill.decode_address == decode


@virtual
def test_only_the_next_position_of_the_current_ticket_is_shown() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    ticket = request.ticket
    assert ticket is not None
    for position in (1, 0, 0, 2, 1, 1):
        d.say(decode, ticket, position)
    d.say(prefill, Ticket(ticket.request, ticket.attempt, bytes(16)), 2)
    d.say(prefill, Ticket(ticket.request, ticket.attempt + 1, ticket.nonce), 2)
    d.say(prefill, Ticket(ticket.request + 1, ticket.attempt, ticket.nonce), 2)
    assert [token.position for token in request.shown] == [0, 1]


@virtual
def test_every_attempt_has_new_random_bits_and_begins_behind_what_was_shown() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    first = request.ticket
    assert first is not None
    d.say(prefill, first, 0)
    d.told(decode)
    d.sequencer.on_lost(d.workers[decode], Lost(first, Reason.LANDING_LOST))
    assert request.ticket is not None and request.ticket.attempt == 2 and request.ticket.nonce != first.nonce
    (opened,) = d.told(decode)
    assert isinstance(opened, Open) and opened.job.emitted == (100,) and opened.job.base == 1


@virtual
def test_two_reports_of_one_failure_raise_once() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    old = request.ticket
    assert old is not None
    d.sequencer.on_lost(d.workers[decode], Lost(old, Reason.LANDING_LOST))
    d.sequencer.on_lost(d.workers[prefill], Lost(old, Reason.CANNOT_PUSH))
    d.sequencer.on_full(d.workers[decode], Full(old, FullKind.NOW))
    assert request.ticket is not None and request.ticket.attempt == 2
    assert not request.refused and not request.failed


@virtual
def test_a_worker_that_is_left_out_is_told_to_forget() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    d.told(prefill)
    ticket = request.ticket
    assert ticket is not None
    d.sequencer.on_lost(d.workers[decode], Lost(ticket, Reason.NO_PROGRESS))
    assert d.serving(request)[0] != prefill and d.serving(request)[1] == decode, "decode is kept, prefill is not"
    assert d.told(prefill) == [Cancel(request.id, 1)]


@virtual
def test_when_decode_is_lost_prefill_is_kept_because_it_may_hold_the_pages() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    d.gone(decode)
    assert d.serving(request)[0] == prefill and d.serving(request)[1] != decode


@virtual
def test_prefill_may_go_once_decode_has_shown_that_it_has_the_pages() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    d.say(decode, request.ticket, 0)
    d.gone(prefill)
    assert request.ticket is not None and request.ticket.attempt == 1 and request.deaths == 0


@virtual
def test_a_token_of_prefill_is_no_hand_over() -> None:
    d = desk()
    request = d.ask()
    prefill, _ = d.serving(request)
    d.say(prefill, request.ticket, 0)
    d.gone(prefill)
    assert request.ticket is not None and request.ticket.attempt == 2


@virtual
def test_the_last_token_ends_the_request_and_both_workers_forget_it() -> None:
    d = desk()
    request = d.ask()
    prefill, decode = d.serving(request)
    d.told(prefill), d.told(decode)
    d.say(decode, request.ticket, 0, End.STOP)
    assert request.phase is RequestPhase.ENDED and d.ended == [None] and not d.sequencer.requests
    assert d.told(prefill) == d.told(decode) == [Cancel(request.id, 1)]
    d.say(decode, request.ticket, 1)
    d.sequencer.end(request)
    assert len(request.shown) == 1 and d.ended == [None]


@virtual
def test_full_ever_everywhere_is_an_error_and_full_now_is_patience() -> None:
    d = desk()
    never, later = d.ask(), d.ask()
    for request, kind in ((never, FullKind.EVER), (later, FullKind.NOW)):
        for _ in range(2):
            assert request.ticket is not None
            d.sequencer.on_full(d.workers[d.serving(request)[1]], Full(request.ticket, kind))
    assert never.phase is RequestPhase.ENDED and isinstance(d.ended[0], PoolTooSmall)
    assert later.phase is RequestPhase.WAITING
    d.sequencer.on_room(d.workers["d2"])
    assert later.phase is RequestPhase.OPEN and d.serving(later)[1] == "d2"


@virtual
def test_room_at_a_worker_that_can_never_hold_it_changes_nothing() -> None:
    d = desk()
    request = d.ask()
    small = d.serving(request)[1]
    assert request.ticket is not None
    d.sequencer.on_full(d.workers[small], Full(request.ticket, FullKind.EVER))
    other = d.serving(request)[1]
    d.sequencer.on_full(d.workers[other], Full(request.ticket, FullKind.NOW))
    d.sequencer.on_room(d.workers[small])
    assert request.phase is RequestPhase.WAITING
    d.sequencer.on_room(d.workers[other])
    assert request.phase is RequestPhase.OPEN and d.serving(request)[1] == other


@virtual
def test_the_third_death_is_the_last() -> None:
    d = desk()
    request = d.ask()
    for _ in range(3):
        assert request.phase is RequestPhase.OPEN
        name = d.serving(request)[1] if len(d.sequencer.workers.tier(Tier.DECODE)) > 1 else d.serving(request)[0]
        d.gone(name)
    assert isinstance(d.ended[0], WorkersDied)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_lost_moves_the_request_on(reason: Reason) -> None:
    async def main() -> None:
        d = desk()
        request = d.ask()
        prefill, decode = d.serving(request)
        reporter = prefill if reason in (Reason.CANNOT_PUSH, Reason.TOO_LARGE) else decode
        assert request.ticket is not None
        d.sequencer.on_lost(d.workers[reporter], Lost(request.ticket, reason))
        assert request.phase is RequestPhase.OPEN and request.ticket.attempt == 2
        assert (d.serving(request)[0] == prefill) == (reason is Reason.PREEMPTED)

    run_virtual(main())
