"""What the gateway knows of each request: the columns of "Request at the gateway" in PROTOCOL.md.

Owned by the sequencer alone. `shown` is law: what a client has seen is never taken back, and every later attempt begins
behind it."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from gateway.core import ChoiceRequest
from mesh.errors import BatonError
from mesh.messages import FullKind, Prefilled, Ticket, Token
from mesh.telemetry import Root


class RequestPhase(Enum):
    WAITING = "waiting"  # no usable decode worker
    OPEN = "open"  # workers have it
    ENDED = "ended"  # done, cancelled, or an error was raised to the client


@dataclass(slots=True)
class GatewayRequest:
    spec: ChoiceRequest
    id: int
    accepted_seconds: float
    root: Root
    events: asyncio.Queue[Token | BatonError]
    phase: RequestPhase = RequestPhase.WAITING
    ticket: Ticket | None = None
    shown: list[Token] = field(default_factory=list)  # after what the client brought along
    prefill: int | None = None
    decode: int | None = None
    handed: bool = False  # decode has shown that it has the pages
    numerics: str = ""  # the class of the tokens shown
    handed_seconds: float | None = None
    prefilled: Prefilled | None = None  # what its prompt took, the first time
    refused: dict[int, FullKind] = field(default_factory=dict)
    failed: dict[tuple[int, int], int] = field(default_factory=dict)  # (prefill, decode): times it could not push
    deaths: int = 0
    first_token_seconds: float | None = None
    ended_seconds: float | None = None
    deadline: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None  # how long it may wait for a worker
    hashes: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)

    @property
    def emitted(self) -> tuple[int, ...]:
        return self.spec.emitted + tuple(token.token for token in self.shown)

    @property
    def next_position(self) -> int:
        return len(self.spec.emitted) + len(self.shown)
