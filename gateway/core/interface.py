"""The interface between the front doors and the core of the gateway.

A front door (gateway/dialects/api.py, gateway/grpc/api.py) turns a client's request into one valid ChoiceRequest per
choice. The core routes each choice and returns its tokens in position order, each exactly once, whichever worker
dies."""

import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.tracing.record import RequestRecord, unrecorded
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError, ClassUnavailable
from mesh.messages.hashing import cache_salt
from mesh.messages.jobs import Sampling, Token
from mesh.messages.orders import Examination
from mesh.messages.reports import Scored


@dataclass(frozen=True, slots=True)
class ChosenAdapter:
    """The adapter that a name stands for at this moment."""

    name: str
    digest: str  # hash of its content; empty: no attached worker has it


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice of one client request; complete and valid."""

    request_id: str  # name of the request in logs and traces; choices of one request share it
    model: str  # the root of the model's names, see Core.root
    prompt: tuple[int, ...]  # token ids
    emitted: tuple[int, ...]  # tokens of this choice that the client already has
    sampling: Sampling  # max_tokens and min_tokens count `emitted` too
    deadline_seconds: float | None = None  # time that is left, counted from now; None: no deadline
    allow_class_change: bool = False
    numerics: str = ""  # numerics class of `emitted`, as TokenStream.numerics spells it; empty: any class
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)  # notes what happens to the request
    salt: bytes = b""  # tenant's share of the block hashes
    adapter: ChosenAdapter | None = None  # as it was when the request came; None: the model alone
    affinity: str = ""  # the router prefers the workers that the last request with this key went to; empty: none
    priority: int = 0  # a lower number counts as older, see mesh/rules.py
    least_tokens: int = 1  # tokens that it has at its end at least, `emitted` included
    choices: int = 1  # choices of the client's request, of which this is one
    beside_tokens: int = 0  # tokens of the other prompts of that request
    examination: Examination | None = None  # compute the prompt alone and report; no token is sampled
    prompt_field: str = "prompt"  # field of the prompt, as the client's front door spells it
    max_tokens_field: str = "max_tokens"
    grammar_field: str = "structured_outputs"
    # Block hashes of the prompt by class and page size; choices of one prompt share them.
    hashes: dict[tuple[str, int], list[bytes]] = field(default_factory=dict, compare=False)

    @property
    def digest(self) -> str:
        """Hash of the adapter's content; empty: the model alone."""
        return self.adapter.digest if self.adapter is not None else ""

    @property
    def cache_salt(self) -> bytes:
        """Begins the block hashes, besides the numerics class."""
        return cache_salt(self.salt, self.digest)

    def __post_init__(self) -> None:
        assert self.prompt, "validation refuses empty prompts"
        generates = self.examination is None
        assert not generates or len(self.emitted) < self.sampling.max_tokens, (
            "validation finishes choices that are already complete"
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one choice went, and what speculation saved."""

    queue_seconds: float | None  # until the first step of its prompt; None: not known
    prefill_seconds: float | None  # from the first step of its prompt to the first token; None: not known
    first_token_seconds: float  # from the choice's acceptance to its first token
    handoff_seconds: float  # from the first token until decode went on, in the first attempt that came so far
    decode_seconds: float  # from the first token to the last
    total_seconds: float
    attempts: int
    cached_tokens: int  # prompt tokens found in a prefix cache
    drafted_tokens: int  # drafts that the model verified
    accepted_tokens: int  # drafts that became tokens of the choice
    decode_steps: int  # decode steps that yielded the tokens after the first


TakeToken = Callable[[int], bool]  # takes a token by its id; False: it does not, and nothing has changed


class TokenStream(Protocol):
    """The tokens of one choice, as a front door reads them."""

    def events(self) -> AsyncIterator[Token]:
        """Yield new tokens from position len(emitted) on, up to a token whose end is not NONE. Raises mesh.errors
        only."""

    def shorten(self, take: TakeToken) -> None:
        """From now on, the id of a token that comes while the reader of `events` waits goes to `take` first, unless it
        is the last one or of another class than the one before. Where `take` returns False the reader gets it."""

    @property
    def numerics(self) -> str:
        """Numerics class and fingerprint of the latest token; known after the first token."""

    @property
    def timings(self) -> Timings: ...

    def cancel(self, *, complete: bool = False) -> None:
        """Free everything behind this choice; idempotent, also after the end. `complete`: the client has its whole
        answer, for instance up to a stop string."""


def check_class(choice: ChoiceRequest, stream: TokenStream) -> None:
    """A continued choice keeps its numerics class unless the client allows a change."""
    if choice.numerics not in ("", stream.numerics) and not choice.allow_class_change:
        raise ClassUnavailable(
            f"the answer began in class {choice.numerics}; this gateway's workers are of class {stream.numerics}. "
            "Continue at a gateway with workers of the first class, or set allow_class_change"
        )


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a prompt and its logprob, given all tokens before it."""

    token: int
    logprob: float
    rank: int  # 1: no other token is likelier
    top_ids: tuple[int, ...]  # the likeliest tokens, best first
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The logprobs of a prompt's tokens. They stay packed until an answer is written: there may be a million."""

    prompt: tuple[int, ...]
    parts: tuple[Scored, ...]

    def entries(self) -> Iterator[ScoredToken]:
        """One for each token of the prompt but the first, which has no logprob."""
        for part in self.parts:
            count = part.count
            tops = len(part.top_ids) // 4 // count if count else 0
            logprobs, ranks = struct.unpack(f"<{count}f", part.logprobs), struct.unpack(f"<{count}I", part.ranks)
            top_ids = struct.unpack(f"<{count * tops}I", part.top_ids)
            top_logprobs = struct.unpack(f"<{count * tops}f", part.top_logprobs)
            for i in range(count):
                top = slice(i * tops, (i + 1) * tops)
                token = self.prompt[part.first + i + 1]
                yield ScoredToken(token, logprobs[i], ranks[i], top_ids[top], top_logprobs[top])


class ExaminationStream(Protocol):
    """The examination of one prompt, as a front door reads it."""

    async def scores(self) -> PromptScores:
        """Wait for the logprobs of the whole prompt. Raises mesh.errors only."""

    async def embedding(self) -> bytes:
        """Wait for the embedding: floats of 4 bytes, little endian. Raises mesh.errors only."""

    @property
    def numerics(self) -> str:
        """Numerics class and fingerprint of its worker; known at the end."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in a prefix cache."""

    def cancel(self) -> None:
        """Free everything behind it; idempotent, also after the end."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One served model, as the workers that are attached now have it."""

    root: str  # the first of its names
    model_hash: str  # hash of its weights; empty while no worker is attached
    context_tokens: int  # smallest context of its workers; 0 while none is attached
    largest_pool_tokens: int  # tokens that the largest decode pool holds; 0 while no decode worker is attached
    adjusts_logits: bool  # False: workers are attached, and none of a tier honours Sampling.adjustments
    healthy: bool  # a request can be served now
    tiers: Mapping[str, int]  # number of its workers of each tier
    adapter: ChosenAdapter | None = None  # None: the name is one of the model itself

    def context(self, allowed: int) -> int:
        """The context of a request, where the model itself allows `allowed` tokens."""
        return min(allowed, self.context_tokens or allowed)


@dataclass(frozen=True, slots=True)
class SilentFacts:
    """A worker from which nothing has come for several heartbeats, as `GET /health` names it."""

    name: str
    tier: str
    address: str
    silent_seconds: float  # since its last message
    attached: bool  # False: its lease has run out, and its requests have gone on elsewhere


class Core(Protocol):
    @property
    def limits(self) -> DoorConfig:
        """Limits of one request."""

    def admit(self, model: str | None = None, *, examined: bool = False) -> None:
        """Raise one of mesh.errors if a request cannot be accepted now. `model`: a name of its model, where that is
        known: a long queue at its workers refuses the request too. `examined`: only its prompt is computed, so no place
        at decode is needed."""

    def load(self) -> Mapping[str, int]:
        """Number of accepted choices that run, and that wait for their first token."""

    def models(self) -> tuple[str, ...]:
        """Names that clients may put into `model`."""

    def healthy(self) -> bool:
        """Whether a request of some model can be served now."""

    def tiers(self) -> Mapping[str, int]:
        """Number of attached workers of each tier."""

    def root(self, name: str) -> str:
        """The first of the names of the model that has this name too: requests carry it."""

    def facts(self, name: str) -> ModelFacts:
        """The abilities of the attached workers of the model with this name."""

    def refused_workers(self) -> tuple[str, ...]:
        """Workers that get no requests, in words: their model is unknown, or they fit no worker of the other tier."""

    def silent_workers(self) -> tuple[SilentFacts, ...]:
        """Workers that stand still, also those whose lease has run out and that are not back."""

    def alarms(self) -> tuple[str, ...]:
        """Lines about pages that a person must look at: they stay quarantined, or do not add up."""

    def count_error(self, error: BatonError, *, refused: bool = False) -> None:
        """A front door sends this error to a client. `refused`: no choice of the request was submitted."""

    def submit(self, choice: ChoiceRequest) -> TokenStream:
        """Accept a choice without waiting, or raise one of mesh.errors."""

    def examine(self, choice: ChoiceRequest) -> ExaminationStream:
        """Accept a choice that has an examination without waiting, or raise one of mesh.errors."""
