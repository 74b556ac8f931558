"""One request as workers get it, and the words that messages about it use: ticket, sampling parameters, token.

Every value is frozen. A ticket names one attempt; whatever a worker reports about a request carries one."""

import struct
from dataclasses import dataclass
from enum import Enum

from mesh.messages.hashing import cache_salt

FEW_LISTED = 20  # likeliest tokens of a position that every worker lists
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
    ADAPTER = "adapter"  # the worker lacks the request's adapter; the detail says why
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
class ReasoningBudget:
    """How much an answer may reason. A mark has, for each of its places, the tokens that may stand there."""

    tokens: int  # those of reasoning, behind which the mark `end` is forced
    begin: tuple[TokenSequence, ...]  # opens the reasoning
    end: tuple[TokenSequence, ...]  # closes it; the first token of each place is the one that is forced
    barred: int = 0  # place of `begin` whose tokens cannot come once the budget is spent and the reasoning is over
    begun: bool = False  # the prompt has opened the reasoning
    ends: tuple[int, ...] = ()  # tokens of other marks that end the reasoning, each alone
    spaces: tuple[int, ...] = ()  # tokens of white space, which may stand before `begin` at the beginning of an answer


@dataclass(frozen=True, slots=True)
class Adjustments:
    """How the logits of one request change before a token is drawn; engine/step/logit_rules.py has the order."""

    biases: tuple[TokenBias, ...] = ()  # are added to the logits
    repetition_penalty: float = 1.0  # divides positive and multiplies negative logits of all tokens of the text
    frequency_penalty: float = 0.0  # is subtracted once for each time that the token was emitted
    presence_penalty: float = 0.0  # is subtracted if the token was emitted
    allowed: bytes = b""  # one bit for each token id, the lowest first: whether it may be drawn; empty: all
    suppressed_ids: tuple[int, ...] = ()  # these are never drawn
    bad_words: tuple[TokenSequence, ...] = ()  # no emitted tokens may continue one of these to its end
    no_repeat_ngram: int = 0  # no sequence of this number of tokens may come twice in the text; 0: off
    reasoning: ReasoningBudget | None = None  # None: the model reasons as long as it likes


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
    logprob_ids: tuple[int, ...] = ()  # the logprobs of these come in place of the likeliest ones'
    adjustments: Adjustments | None = None  # None: tokens are drawn from the model's own logits
    grammar: str = ""  # llguidance grammar that the answer follows up to its stop id; empty: none

    @property
    def reads_logits(self) -> bool:
        """Whether a worker must change or look up single logits of the request, or list many, which those on GPUs do
        not do."""
        return self.adjustments is not None or bool(self.logprob_ids) or (self.top_logprobs or 0) > FEW_LISTED

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
    start_seconds: float | None = None  # a worker that has not begun it after this time gives it back; None: it waits
    adapter: str = ""  # hash of the adapter that it is computed with; empty: the model alone

    @property
    def cache_salt(self) -> bytes:
        """Begins the block hashes, besides the numerics class."""
        return cache_salt(self.salt, self.adapter)

    @property
    def base(self) -> int:
        """Position of the first token that this attempt emits."""
        return len(self.emitted)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids that prefill computes: the prompt and, behind it, what is emitted."""
        return self.prompt + self.emitted
