"""Messages from a worker to its gateways: who it is, how it stands, and what has become of each attempt.

They travel over the Attach stream, except Register. docs/protocol.md says what each message means."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mesh.messages.adapters import NamedAdapter
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import End, FullKind, Reason, Ticket, Tier, Token


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
    page_seconds: float = 0.0  # prefill: time that one page takes to a decode worker; 0: not measured yet
    local_tokens_per_second: float = 0.0  # decode: speed with prompts beside its batch; 0: unknown, or it takes none


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
    reports_pages: bool = True  # it answers PageQuery; older workers do not
    all_cores: bool = False  # it computes on every core that its host has for workers, those of others too
    window_tokens: int = 0  # tokens that a token reads, itself the last: pages before them are given back; 0: all
    windowed_bands: int = 0  # pages of the same tokens that are given back so, where others are not; 0: see above
    full_bands: int = 0  # pages of the same tokens beside them that are kept until the text ends
    chunk_tokens: int = 0  # tokens of a prompt that a step computes at most; 0: not told
    adapters: tuple[NamedAdapter, ...] = ()  # those that it has
    loads_adapters: bool = False  # it takes ReadAdapter; an older worker, or one on a GPU, does not

    def at(self, address: str, load: Load, prefix: PrefixChange, adapters: tuple[NamedAdapter, ...] = ()) -> "Hello":
        """The same worker with its address, load, cached pages and adapters of this moment."""
        return replace(self, address=address, load=load, prefix=prefix, adapters=adapters)


# Packed ticket, position, id, logprob and end of a token; and the token itself, where it was made.
TokenRow = tuple[bytes, int, int, float, End, Token | None]


@dataclass(frozen=True, slots=True)
class TokenOf:
    """One emitted token and the attempt that emitted it."""

    ticket: Ticket
    token: Token


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens that one engine step has emitted."""

    items: tuple[TokenOf, ...]  # the tokens of one request are in order of position

    def rows(self) -> Iterator[TokenRow]:
        for item in self.items:
            token = item.token
            yield item.ticket.pack(), token.position, token.token, token.logprob, token.end, token


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
class Measure:
    """One number that a worker counts: cumulative since its start, or the state of this moment."""

    name: str  # the metric's name, and behind it the values of its labels, each after a slash
    value: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """One histogram of a worker, cumulative since its start."""

    name: str
    counts: tuple[int, ...]  # values in each bucket of mesh/telemetry/buckets.py, and last those above all bounds
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
    limit_ms: int  # a step that computes for this time never ends: then the worker ends its own process


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
    """A phase that is over. mesh/telemetry/semconv.py has the names; the gateway makes a span of it."""

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


@dataclass(frozen=True, slots=True)
class PageMap:
    """The state of every page of a worker's pool, as runs of equal cells; see mesh/sessions/page_map.py."""

    pages_per_cell: int  # neighbouring pages that one cell stands for; 1 unless the pool is very large
    states: bytes  # one byte for each run: the index of its state in PAGE_STATES
    lengths: tuple[int, ...]  # cells of each run


@dataclass(frozen=True, slots=True)
class PageHolder:
    """A request, a step or a writer that holds pages of a worker."""

    what: str  # the phase of the request there, or what else holds the pages
    state: str  # state of its pages: in_use, landing or quarantined
    request: int  # the request's id, as in its tickets; 0: a step
    attempt: int
    writer: int  # incarnation of the prefill worker that may write the pages; 0: none
    why: str  # why the pages are quarantined; empty: they are not
    seconds: float  # how long it has held them; negative: not known
    pages: int  # how many


@dataclass(frozen=True, slots=True)
class PageReport:
    """Every page of a worker's pool: sums and holders of one moment, a map, and the pages of the query one by one, as
    runs of pages that have the same state and the same holders. See mesh/sessions/page_reports.py."""

    number: int  # number of the query that this answers
    free: int
    cached: int
    in_use: int
    landing: int
    quarantined: int
    holders: tuple[PageHolder, ...]
    faults: tuple[str, ...]  # pages that do not add up, in words
    page_map: PageMap
    lengths: tuple[int, ...] = ()  # pages of each run
    states: bytes = b""  # one byte for each run: the index of its state in PAGE_STATES
    sharers: tuple[int, ...] = ()  # number of holders of each run
    held_by: tuple[int, ...] = ()  # indexes of these holders, run by run
