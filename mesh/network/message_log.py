"""A process's log of the messages of the protocol: one JSON line for each that it sends or receives, and for each end.

The setting `message_log` names the folder; each process writes a file of its own there. Lines carry tickets, positions
and page ids, never text. A line is written before its message leaves or is handled, and past every buffer, so that the
file of a killed process is complete up to the kill. Lines are numbered, so that a lost one shows. `python -m
tests.protocol --trace FOLDER` checks such a folder against the model of docs/protocol.md."""

import atexit
import json
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from mesh.messages.jobs import End, Job, Ticket
from mesh.messages.kv_messages import Abort, Commit, KvHello, Landed, Landing, Later, Quiet, Ready, Resend, Written
from mesh.messages.message import Drain, Heartbeat, Message
from mesh.messages.orders import Cancel, Examine, Open, Prefill
from mesh.messages.reports import Full, Hello, LongStep, Lost, Tokens
from mesh.telemetry.lossy_output import write_all

OWNER_ONLY = 0o600

Clock = Callable[[], float]


class MessageLog:
    """Writes the lines of one process; each goes whole to `write`."""

    def __init__(self, write: Callable[[bytes], None], *, tier: str, name: str, incarnation: int, clock: Clock) -> None:
        """`clock`: the same for all processes whose logs are read together."""
        self.lost = 0  # lines that could not be written
        self._write, self._clock, self._numbers, self._streams = write, clock, count(), count()
        self._cut = b""  # ends the line that a failed write may have cut
        self.note("start", tier=tier, name=name, incarnation=incarnation)

    def new_stream(self) -> int:
        """The number of the process's next stream."""
        return next(self._streams)

    def message(self, what: str, stream: int, message: Message) -> None:
        """Note a message that is sent or received, if it is one of those that the log knows."""
        kind = Tokens if isinstance(message, Tokens) else type(message)  # columns are tokens too
        if (fields := FIELDS.get(kind)) is not None:
            self.note(what, stream=stream, kind=kind.__name__, **fields(message))

    def note(self, what: str, **fields: Any) -> None:
        line = {"number": next(self._numbers), "seconds": self._clock(), "what": what, **fields}
        try:
            self._write(self._cut + json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self._cut = b""
        except OSError:
            self.lost += 1
            self._cut = b"\n"


def open_message_log(folder: Path, *, tier: str, name: str, incarnation: int, clock: Clock) -> MessageLog:
    """A log in a new file of this folder. Its last line says that the process has ended by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{tier}-{incarnation:016x}.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY)

    def write(line: bytes) -> None:
        write_all(descriptor, line)

    log = MessageLog(write, tier=tier, name=name, incarnation=incarnation, clock=clock)
    with suppress(RuntimeError):  # the process is about to end
        atexit.register(log.note, "exit")
    return log


def ticket_of(ticket: Ticket) -> list[Any]:
    return [ticket.request, ticket.attempt, ticket.nonce.hex()]


def _only_ticket(message: Any) -> dict[str, Any]:
    return {"ticket": ticket_of(message.ticket)}


def _nothing(message: Any) -> dict[str, Any]:
    return {}


def _order(job: Job, peer: int | None) -> dict[str, Any]:
    """`peer`: the incarnation of the other worker of the attempt; None: there is none."""
    timed = job.deadline_seconds is not None
    return {"ticket": ticket_of(job.ticket), "base": job.base, "peer": peer, "timed": timed}


# What a line has of each message. Kinds that no step of a request depends on are not here.
FIELDS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Hello: lambda m: {"incarnation": m.incarnation},
    KvHello: lambda m: {"incarnation": m.incarnation, "chosen": m.chosen},
    Heartbeat: _nothing,
    Drain: _nothing,
    LongStep: _nothing,
    Prefill: lambda m: _order(m.job, m.decode_incarnation),
    Open: lambda m: _order(m.job, m.prefill_incarnation),
    Examine: lambda m: {"ticket": ticket_of(m.job.ticket)},
    Cancel: lambda m: {"request": m.request, "attempt": m.attempt},
    Tokens: lambda m: {
        "tokens": [[*ticket_of(i.ticket), i.token.position, i.token.end is not End.NONE] for i in m.items]
    },
    Lost: lambda m: {"ticket": ticket_of(m.ticket), "reason": m.reason.value},
    Full: lambda m: {"ticket": ticket_of(m.ticket), "reason": m.kind.value},
    Ready: _only_ticket,
    Landing: lambda m: {"ticket": ticket_of(m.ticket), "pages": list(m.pages)},
    Later: _only_ticket,
    Written: lambda m: {"ticket": ticket_of(m.ticket), "round": m.round},
    Commit: lambda m: {"ticket": ticket_of(m.ticket), "round": m.round},
    Resend: lambda m: {"ticket": ticket_of(m.ticket), "round": m.round},
    Landed: _only_ticket,
    Abort: _only_ticket,
    Quiet: lambda m: {"ticket": ticket_of(m.ticket), "incarnation": m.incarnation},
}
