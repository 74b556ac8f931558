"""Every message of the mesh, as a frozen value; `mesh/codec.py` turns them into protobuf at the edge.

Streams: gateway <-> worker (Attach) carries Open, Prefill, Cancel down and Hello, Tokens, Lost, Full, Load up;
prefill <-> decode (kv.v1) carries KvHello and the hand-off's control messages. Page bytes never travel here.
Fields follow PROTOCOL.md; two tickets are equal only if all three parts are."""

import struct
from dataclasses import dataclass, replace
from enum import Enum

_TICKET = struct.Struct("<QQ16s")


@dataclass(frozen=True, slots=True)
class Ticket:
    request: int  # 64 bits, drawn by the gateway
    attempt: int  # from 1, raised by the gateway only
    nonce: bytes  # 16 bytes, drawn by the gateway for this attempt

    def __post_init__(self) -> None:
        if len(self.nonce) != 16:
            raise ValueError(f"ticket of request {self.request}: the nonce has {len(self.nonce)} bytes, not 16")

    def pack(self) -> bytes:
        """The 32 opaque bytes that transports carry."""
        return _TICKET.pack(self.request, self.attempt, self.nonce)

    @classmethod
    def unpack(cls, raw: bytes) -> "Ticket":
        return cls(*_TICKET.unpack(raw))


class Tier(Enum):
    PREFILL = "prefill"
    DECODE = "decode"


class End(Enum):
    NONE = "none"  # the request goes on after this token
    STOP = "stop"  # this token is one of the stop ids
    LENGTH = "length"  # this token is the last that was asked for


class Reason(Enum):
    """Why a worker reports Lost; each moves the request to its next attempt."""

    LANDING_LOST = "landing_lost"  # the session with prefill ended before all spans were valid
    NO_PROGRESS = "no_progress"  # prefill is connected but neither writes nor computes
    PREEMPTED = "preempted"  # decode needed the pages for an older request
    CANNOT_PUSH = "cannot_push"  # prefill lost its session with decode
    TOO_LARGE = "too_large"  # the prompt exceeds the whole prefill pool


class FullKind(Enum):
    EVER = "ever"  # larger than the whole pool
    NOW = "now"  # not while pages stay quarantined


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when a request ends; complete, no field means 'default'."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits; drawn by the gateway when the client gave none
    choice: int = 0  # index among n choices of one request
    max_tokens: int = 16
    min_tokens: int = 0  # stop ids are masked before this many tokens were emitted
    stop_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None  # None: no logprobs; n: the token's and the n best

    def end(self, position: int, token: int) -> End:
        """Does the request end with this token?"""
        if token in self.stop_ids and position >= self.min_tokens:
            return End.STOP
        return End.LENGTH if position + 1 >= self.max_tokens else End.NONE


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token with what the client may need of it."""

    position: int
    token: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    end: End = End.NONE
    drafted: int = 0  # drafts that its step verified; said by the step's first token
    accepted: bool = False  # it was one of those drafts: it came in the step of the token before


@dataclass(frozen=True, slots=True)
class Job:
    """What both tiers are told of a request. `emitted` is law: it is replayed, never sampled again."""

    ticket: Ticket
    prompt: tuple[int, ...]
    emitted: tuple[int, ...]
    sampling: Sampling
    deadline_seconds: float | None = None  # from now, measured by the receiver's own clock
    traceparent: str = ""
    salt: bytes = b""  # tenant's share of the block hashes
    priority: int = 0  # a request with a lower number counts as older, see mesh/rules.py

    @property
    def base(self) -> int:
        """Position of the first token that this attempt may emit."""
        return len(self.emitted)

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.emitted


# ---- gateway -> worker


@dataclass(frozen=True, slots=True)
class Prefill:
    job: Job
    decode_address: str
    decode_incarnation: int


@dataclass(frozen=True, slots=True)
class Open:
    job: Job
    prefill_incarnation: int | None  # None: local, decode prefills itself
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget this attempt and all lower ones."""

    request: int
    attempt: int


# ---- worker -> gateway


@dataclass(frozen=True, slots=True)
class Register:
    """Unary, to every gateway the worker resolves: dial me."""

    address: str
    tier: Tier
    incarnation: int


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a worker is; sent when it changed, at most once per step, and with the first Hello."""

    waiting: int = 0  # requests without pages
    running: int = 0
    queued_tokens: int = 0  # prompt tokens not computed yet
    free_pages: int = 0  # free + cached
    total_pages: int = 0
    tokens_per_second: float = 0.0  # prompt tokens, measured over recent steps; 0: unknown


@dataclass(frozen=True, slots=True)
class PrefixChange:
    """Block hashes that came into or left the worker's prefix cache. A gap in `sequence` asks for a new snapshot,
    which is a change with `snapshot = True` that replaces everything known."""

    sequence: int
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an Attach stream."""

    tier: Tier
    incarnation: int
    address: str  # where prefill workers dial this one for kv.v1
    numerics: str  # the numerics class; equal classes only are paired
    fingerprint: str
    model: str  # the name clients use
    model_hash: str
    page_tokens: int
    context_tokens: int
    load: Load
    prefix: PrefixChange

    def at(self, address: str, load: Load, prefix: PrefixChange) -> "Hello":
        """The same worker as it is now."""
        return replace(self, address=address, load=load, prefix=prefix)


@dataclass(frozen=True, slots=True)
class TokenOf:
    ticket: Ticket
    token: Token


@dataclass(frozen=True, slots=True)
class Tokens:
    """One message per engine step for all requests."""

    items: tuple[TokenOf, ...]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Sent beside a request's first token by whoever computed its prompt."""

    ticket: Ticket
    cached_tokens: int  # of the prompt, found in the prefix cache
    queued_seconds: float  # until its first step
    computed_seconds: float  # from then to the first token


@dataclass(frozen=True, slots=True)
class Drain:
    """Nothing new, please: this worker leaves when what it has is done."""


@dataclass(frozen=True, slots=True)
class Lost:
    ticket: Ticket
    reason: Reason


@dataclass(frozen=True, slots=True)
class Full:
    ticket: Ticket
    kind: FullKind


# ---- prefill <-> decode


@dataclass(frozen=True, slots=True)
class KvHello:
    """First message of a kv.v1 session, from prefill, and decode's answer to it."""

    incarnation: int
    numerics: str
    layout: str  # name of the page's inner tile layout; equal names mean bytes move as they are
    page_bytes: int
    host: str  # equal on processes that share memory
    uid: int
    pid: int
    transports: tuple[str, ...] = ()  # what prefill can speak, best first
    chosen: str = ""  # decode's answer: the transport, and why
    why: str = ""
    handle: bytes = b""  # decode's answer: how the transport reaches its pool; belongs to this incarnation


@dataclass(frozen=True, slots=True)
class Ready:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Landing:
    ticket: Ticket
    first_page: int  # decode has the ones before
    pages: tuple[int, ...]  # decode's page ids for first_page, first_page + 1, ...


@dataclass(frozen=True, slots=True)
class Later:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Written:
    """Spans that were completely written by a one-sided transport; two-sided frames carry the same themselves."""

    ticket: Ticket
    first_layer: int
    layers: int
    round: int
    pages: tuple[int, ...]  # page indexes of the prompt, not page ids
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computing:
    ticket: Ticket
    longest_step_ms: int


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: Ticket
    round: int
    first: Token | None


@dataclass(frozen=True, slots=True)
class Resend:
    ticket: Ticket
    round: int
    first_layer: int
    layers: int
    pages: tuple[int, ...]  # page indexes


@dataclass(frozen=True, slots=True)
class Landed:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Abort:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Quiet:
    ticket: Ticket
    incarnation: int


# ---- both kinds of session


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent when nothing else was for a heartbeat's time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gateway -> worker: a prefix change went missing, send everything."""


Down = Prefill | Open | Cancel | Snapshot | Heartbeat
Up = Hello | Tokens | Prefilled | Lost | Full | Load | PrefixChange | Drain | Heartbeat
Kv = KvHello | Ready | Landing | Later | Written | Computing | Commit | Resend | Landed | Abort | Quiet | Heartbeat
Message = Register | Down | Up | Kv
