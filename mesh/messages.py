"""Every message of the mesh, as a frozen value; `mesh/codec.py` turns them into protobuf at the edge. One long file
holds them all, so that both ends of a stream are read side by side.

The Attach stream carries `Down` from gateway to worker and `Up` from worker to gateway; the kv.v1 stream carries `Kv`
between prefill and decode. Page bytes never travel here. docs/protocol.md says what each message means."""

import struct
from dataclasses import dataclass, field, replace
from enum import Enum

from mesh.pairing import PageReach

_TICKET = struct.Struct("<QQ16s")


@dataclass(frozen=True, slots=True)
class Ticket:
    """Names one attempt of one request; two tickets are equal only if all three parts are."""

    request: int  # 64 random bits of the gateway
    attempt: int  # counts from 1; only the gateway raises it
    nonce: bytes  # 16 random bytes of the gateway, new for each attempt

    def __post_init__(self) -> None:
        if len(self.nonce) != 16:
            raise ValueError(f"ticket of request {self.request}: the nonce has {len(self.nonce)} bytes, not 16")

    def pack(self) -> bytes:
        """The ticket as the 32 opaque bytes that transports carry."""
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
    LENGTH = "length"  # this token is the last one that max_tokens allows


class Reason(Enum):
    """Why a worker reports Lost; the gateway answers with the request's next attempt, or ends it where that is said."""

    LANDING_LOST = "landing_lost"  # the session with prefill ended before decode could admit the landing
    NO_PROGRESS = "no_progress"  # prefill is connected, but sends neither a new span nor Computing
    PREEMPTED = "preempted"  # decode needed the pages for an older request
    CANNOT_PUSH = "cannot_push"  # prefill cannot reach decode, or a write to it failed
    TOO_LARGE = "too_large"  # prompt or answer need more than the worker's whole pool or context has
    GRAMMAR = "grammar"  # the answer cannot follow its grammar here; the gateway ends the request with the detail
    LATE = "late"  # it waited too long, and nothing of it is computed; the gateway ends the request
    FAILED = "failed"  # the job is not sound, or a step with it alone fails; the gateway ends the request with an error


class Pooling(Enum):
    """How the hidden states of a prompt become one embedding."""

    LAST = "last"  # the state of the last token
    MEAN = "mean"  # the mean over all tokens


class FullKind(Enum):
    """Why decode refuses a request."""

    EVER = "ever"  # the request needs more pages than the whole pool has
    NOW = "now"  # the request does not fit while pages stay quarantined


@dataclass(frozen=True, slots=True)
class TokenSequence:
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenBias:
    token: int  # token id
    bias: float


@dataclass(frozen=True, slots=True)
class Adjustments:
    """How the logits of one request change before a token is drawn; engine/logit_rules.py has the order."""

    biases: tuple[TokenBias, ...] = ()  # are added to the logits
    repetition_penalty: float = 1.0  # divides positive and multiplies negative logits of all tokens of the text
    frequency_penalty: float = 0.0  # is subtracted once for each time that the token was emitted
    presence_penalty: float = 0.0  # is subtracted if the token was emitted
    allowed: bytes = b""  # one bit for each token id, the lowest first: whether it may be drawn; empty: all
    suppressed_ids: tuple[int, ...] = ()  # these are never drawn
    bad_words: tuple[TokenSequence, ...] = ()  # no emitted tokens may continue one of these to its end
    no_repeat_ngram: int = 0  # no sequence of so many tokens may come twice in the text; 0: off


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters: how tokens are chosen and when a request ends. The gateway fills in every field."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    seed: int = 0  # 64 bits; the gateway draws one if the client sent none
    choice: int = 0  # index among the n choices of one request
    max_tokens: int = 16  # emitted tokens after which the request ends
    min_tokens: int = 0  # stop ids are masked until this many tokens are emitted
    stop_ids: tuple[int, ...] = ()  # token ids that end the request
    top_logprobs: int | None = None  # None: no logprobs; n: the token's own and those of the n likeliest tokens
    adjustments: Adjustments | None = None  # None: tokens are drawn from the model's own logits
    grammar: str = ""  # llguidance grammar that the answer follows up to its stop id; empty: none

    def end(self, position: int, token: int) -> End:
        """Whether, and why, the request ends with this token at this position."""
        if token in self.stop_ids and position >= self.min_tokens:
            return End.STOP
        return End.LENGTH if position + 1 >= self.max_tokens else End.NONE


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and everything that the client may want to know of it."""

    position: int  # index among the request's emitted tokens
    token: int  # token id
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()  # ids of the likeliest tokens at this position, best first
    top_logprobs: tuple[float, ...] = ()  # their logprobs
    end: End = End.NONE  # whether the request ends with this token
    drafted: int = 0  # drafts that the step verified; only the first token of a step carries the number
    accepted: bool = False  # the token was a draft, so it came in the same step as the token before it


@dataclass(frozen=True, slots=True)
class Job:
    """One request as both tiers get it. Emitted tokens are law: they are replayed, never sampled again."""

    ticket: Ticket
    prompt: tuple[int, ...]  # token ids of the prompt
    emitted: tuple[int, ...]  # token ids that the client has already
    sampling: Sampling
    deadline_seconds: float | None = None  # time that is left, counted from arrival on the receiver's own clock
    traceparent: str = ""  # W3C trace context of this attempt's span at this worker; empty: record nothing
    salt: bytes = b""  # the tenant's secret in the block hashes: tenants share no cached pages
    priority: int = 0  # a lower number counts as waiting longer, see `priority_seconds` in mesh/rules.py
    start_seconds: float | None = None  # a worker that computes nothing of it for so long gives it back; None: it waits

    @property
    def base(self) -> int:
        """Position of the first token that this attempt emits."""
        return len(self.emitted)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids that prefill computes: the prompt and, behind it, what is emitted."""
        return self.prompt + self.emitted


# ---- gateway -> worker


@dataclass(frozen=True, slots=True)
class Prefill:
    """To prefill: compute this prompt and hand it to this decode worker. Replaces lower attempts of the request."""

    job: Job
    decode_address: str  # address of the decode worker's kv.v1 service
    decode_incarnation: int  # Ready goes to this incarnation only


@dataclass(frozen=True, slots=True)
class Open:
    """To decode: expect this request from prefill. The only message that raises an attempt at decode."""

    job: Job
    prefill_incarnation: int | None  # None: local, decode computes the prompt itself
    age_ms: int = 0  # time since the gateway accepted the request


@dataclass(frozen=True, slots=True)
class Examination:
    """The report wanted of a prompt that a worker computes alone: with `pooling` an embedding, else logprobs."""

    top: int = 0  # beside the logprobs of the tokens, those of so many likeliest ones at each position
    pooling: Pooling | None = None  # how the embedding is made
    dimensions: int = 0  # of the embedding only so many first values; 0: all


@dataclass(frozen=True, slots=True)
class Examine:
    """To either tier: compute this prompt alone and report. It has no landing and no decode. Replaces lower attempts
    of the request."""

    job: Job  # its sampling parameters have no meaning
    examination: Examination


@dataclass(frozen=True, slots=True)
class Cancel:
    """To both: forget this attempt of a request and all lower ones."""

    request: int  # the request's id, as in its tickets
    attempt: int


@dataclass(frozen=True, slots=True)
class ClockProbe:
    """To both: answer with the own clock, so that the gateway can convert the times of Phases."""

    number: int  # the reading repeats it


# ---- worker -> gateway


@dataclass(frozen=True, slots=True)
class Register:
    """A worker sends this unary call to each of its gateways, and the gateway dials the worker."""

    address: str  # where the worker serves Attach
    tier: Tier
    incarnation: int


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a worker is. Sent with Hello, and then when it has changed, at most once per step."""

    waiting: int = 0  # requests without pages
    running: int = 0  # requests that steps compute
    queued_tokens: int = 0  # prompt tokens that are not computed yet
    free_pages: int = 0  # pages that can be handed out: free and cached ones
    total_pages: int = 0  # pages of the whole pool
    tokens_per_second: float = 0.0  # prompt tokens per second of recent steps; 0: not measured yet
    opened: int = 0  # decode: requests without pages, those whose prompts wait at prefill included
    free_places: int = 0  # decode: further requests that could begin now
    place_seconds: float = 0.0  # decode: time between two places that get free while none is; 0: not measured yet


@dataclass(frozen=True, slots=True)
class PrefixChange:
    """Block hashes that came into or left the worker's prefix cache. A gateway that sees a gap in the sequence sends
    Snapshot and gets a change that replaces everything it knows."""

    sequence: int  # number of this change; a snapshot carries the number of the last change that it includes
    added: tuple[bytes, ...] = ()  # block hashes of pages that are cached now
    removed: tuple[bytes, ...] = ()  # block hashes of pages that are evicted
    snapshot: bool = False  # True: `added` is the whole cache


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an Attach stream: who the worker is and how it stands."""

    tier: Tier
    incarnation: int  # 64 random bits that the process has drawn at its start
    address: str  # where the worker listens: gateways for Attach, prefill workers for kv.v1
    numerics: str  # numerics class; only workers of equal classes are paired
    fingerprint: str  # hash of the output bits of a fixed self-test
    model: str  # the name that clients use
    model_hash: str  # hash of the checkpoint
    page_tokens: int  # tokens of one page
    context_tokens: int  # longest prompt and answer together
    load: Load
    prefix: PrefixChange  # a snapshot
    name: str = ""  # the configured name; gateways show it in metrics, traces and logs
    examines: bool = True  # it takes Examine; workers on a GPU do not
    adjusts_logits: bool = True  # False: requests with Sampling.adjustments go to other workers
    vocabulary: int = 0  # number of the model's token ids; 0: not told
    pages: PageReach | None = None  # what decides who can hand pages to whom; None: not told

    def at(self, address: str, load: Load, prefix: PrefixChange) -> "Hello":
        """The same worker with its address, load and cached pages of this moment."""
        return replace(self, address=address, load=load, prefix=prefix)


@dataclass(frozen=True, slots=True)
class TokenOf:
    """One emitted token and the attempt that emitted it."""

    ticket: Ticket
    token: Token


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens that one engine step has emitted."""

    items: tuple[TokenOf, ...]  # the tokens of one request are in order of position


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The cost of a prompt. The worker that computed it sends this beside the first token."""

    ticket: Ticket
    cached_tokens: int  # prompt tokens that the prefix cache had
    queued_seconds: float  # time from the prompt's arrival to its first step
    computed_seconds: float  # time from its first step to the first token


@dataclass(frozen=True, slots=True)
class Scored:
    """Logprobs of some tokens of an examined prompt, in order of position. The first token of a prompt has none.
    Numbers are packed, little endian, in 4 bytes each."""

    ticket: Ticket
    first: int  # index of the first entry: entry i belongs to the prompt's token i + 1
    logprobs: bytes  # floats
    ranks: bytes  # unsigned; 1: no other token is likelier
    top_ids: bytes  # unsigned; those of the likeliest tokens of each entry, best first
    top_logprobs: bytes  # floats

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.logprobs) // 4


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of an examined prompt."""

    ticket: Ticket
    values: bytes  # floats of 4 bytes, little endian; their squares add up to 1


@dataclass(frozen=True, slots=True)
class Drain:
    """From a worker: it takes no new requests, and those that it has go on. To a worker: an operator orders this."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number that a worker counts: cumulative since its start, or the state of this moment."""

    name: str  # the metric's name, and behind it the values of its labels, each after a slash
    value: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """One histogram of a worker, cumulative since its start."""

    name: str
    counts: tuple[int, ...]  # values in each bucket of mesh/buckets.py, and last those above all bounds
    sum: float  # sum of all values


@dataclass(frozen=True, slots=True)
class Measures:
    """Everything that a worker measures about itself. Sent behind Hello, and then when it has changed, at most once a
    second."""

    values: tuple[Measure, ...]
    distributions: tuple[Distribution, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """This attempt cannot go on here; the gateway begins the next one."""

    ticket: Ticket
    reason: Reason
    detail: str = ""  # for the client, where the reason is GRAMMAR; for the log too, where it is FAILED


@dataclass(frozen=True, slots=True)
class Begun:
    """This attempt's turn has come here: the next steps compute it, and one of them may be what ends the worker."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class LongStep:
    """A step has been computing for longer than a heartbeat; sent once per heartbeat until it is over."""

    running_ms: int
    limit_ms: int  # a step that computes for so long never ends: then the worker ends its own process


@dataclass(frozen=True, slots=True)
class Full:
    """Decode cannot hold this request; the gateway tries another decode worker."""

    ticket: Ticket
    kind: FullKind


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The answer to ClockProbe."""

    number: int
    seconds: float  # the worker's clock; Phases carry times of the same clock


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """Something that happened during a phase."""

    name: str
    seconds: float
    attributes: str = ""  # a JSON object; empty: none


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that is over. mesh/semconv.py has the names; the gateway makes a span of it."""

    name: str
    start_seconds: float
    end_seconds: float
    attributes: str = ""  # a JSON object; empty: none
    events: tuple[PhaseEvent, ...] = ()
    links: tuple[str, ...] = ()  # traceparents of the requests in a step


@dataclass(frozen=True, slots=True)
class Leg:
    """One attempt at this worker, from its arrival to its end: phases without a gap, and others beside them."""

    ticket: Ticket
    start_seconds: float
    end_seconds: float
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """Recorded work of a worker, for traces: legs that have ended, and sampled steps."""

    legs: tuple[Leg, ...] = ()
    steps: tuple[Phase, ...] = ()


# ---- prefill <-> decode


@dataclass(frozen=True, slots=True)
class KvHello:
    """First message of a kv.v1 session: prefill sends one, decode answers with its own."""

    incarnation: int  # incarnation of the sender
    numerics: str  # numerics class and fingerprint
    layout: str  # name of the tile layout inside a page; between equal names bytes move as they are
    page_bytes: int  # bytes of one page
    host: str  # equal for processes that can share memory
    uid: int  # user id of the sender's process
    pid: int  # process id of the sender
    transports: tuple[str, ...] = ()  # from prefill: transports that it can use, best first
    chosen: str = ""  # from decode: the transport for this session, or "" if there is none
    why: str = ""  # from decode: the reason for its choice, as text for logs
    handle: bytes = b""  # from decode: how the transport reaches its pool; valid for this incarnation only
    secret: bytes = field(default=b"", repr=False)  # from prefill: the same in all its sessions with this decode worker


@dataclass(frozen=True, slots=True)
class Ready:
    """Prefill asks whether this ticket may land."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Landing:
    """Decode gives the ticket every page that it still needs, and the right to write them."""

    ticket: Ticket
    first_page: int  # index of the prompt's first page that decode lacks
    pages: tuple[int, ...]  # decode's page ids for the indexes first_page, first_page + 1, ...


@dataclass(frozen=True, slots=True)
class Later:
    """Decode has no room for this ticket now; prefill asks again."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Written:
    """Spans that a one-sided transport has completely written; frames of two-sided ones carry the same themselves."""

    ticket: Ticket
    first_layer: int  # first layer of each span
    layers: int  # number of layers of each span
    round: int  # Resends that prefill had received when the write began
    pages: tuple[int, ...]  # page indexes of the prompt, not page ids
    checksums: tuple[int, ...]  # one per page


@dataclass(frozen=True, slots=True)
class Computing:
    """Prefill is still at this prompt, so its landing must not time out."""

    ticket: Ticket
    longest_step_ms: int  # longest step of this prefill worker so far; the landing's deadline is measured in it


@dataclass(frozen=True, slots=True)
class Commit:
    """All spans of this round are written, and no write of this ticket is in flight."""

    ticket: Ticket
    round: int  # Resends that prefill has received
    first: Token | None  # the first token that prefill has sampled


@dataclass(frozen=True, slots=True)
class Resend:
    """Decode asks for spans that are missing or damaged."""

    ticket: Ticket
    round: int  # number of this Resend, counted from 1 for each ticket
    first_layer: int  # first layer of each span
    layers: int  # number of layers of each span
    pages: tuple[int, ...]  # page indexes of the prompt, not page ids


@dataclass(frozen=True, slots=True)
class Landed:
    """Decode has everything that it needs of this ticket; prefill releases its pages."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Abort:
    """Decode tells prefill to stop this ticket and to answer Quiet."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Quiet:
    """This incarnation of prefill has no write of this ticket in flight and begins none."""

    ticket: Ticket
    incarnation: int  # incarnation of the prefill worker that sends it


# ---- both kinds of session


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent when the session has carried nothing else for about a heartbeat's time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gateway to worker: a PrefixChange is missing, send the whole cache."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Gateway to worker: it gets no requests, because it fits no worker of the other tier or its model is unknown."""

    why: str  # for the worker's log; empty: it gets requests again


@dataclass(frozen=True, slots=True)
class Watch:
    """Gateway to worker: a person looks at the mesh; send PageMap whenever pages changed, at most twice a second."""

    seconds: int  # the worker stops so long after the last Watch


@dataclass(frozen=True, slots=True)
class PageMap:
    """The state of every page of a worker's pool, as runs of equal cells; see mesh/page_map.py."""

    pages_per_cell: int  # neighbouring pages that one cell stands for; 1 unless the pool is very large
    states: bytes  # one byte for each run: the index of its state in PAGE_STATES
    lengths: tuple[int, ...]  # cells of each run


Down = Prefill | Open | Examine | Cancel | Snapshot | ClockProbe | Watch | Drain | Refused | Heartbeat
Up = (
    Hello
    | Tokens
    | Prefilled
    | Scored
    | Embedded
    | Lost
    | Full
    | Begun
    | LongStep
    | Load
    | PrefixChange
    | Drain
    | ClockReading
    | Phases
    | Measures
    | PageMap
    | Heartbeat
)
Kv = KvHello | Ready | Landing | Later | Written | Computing | Commit | Resend | Landed | Abort | Quiet | Heartbeat
Message = Register | Down | Up | Kv
