"""The interface between the front doors and the core of the gateway.

A front door (gateway/http/api.py, gateway/grpc/api.py) turns a client's request into one valid ChoiceRequest per
choice. The core routes each choice and returns its tokens in position order, each exactly once, whichever worker
dies."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.observability.record import RequestRecord, unrecorded
from mesh.door_config import DoorConfig
from mesh.errors import BatonError
from mesh.messages import Sampling, Token


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice of one client request; complete and valid."""

    request_id: str  # name of the request in logs and traces; choices of one request share it
    model: str
    prompt: tuple[int, ...]  # token ids
    emitted: tuple[int, ...]  # tokens of this choice that the client already has
    sampling: Sampling  # max_tokens and min_tokens count `emitted` too
    deadline_seconds: float | None = None  # time that is left, counted from now; None: no deadline
    allow_class_change: bool = False
    numerics: str = ""  # numerics class of `emitted`, as TokenStream.numerics spells it; empty: any class
    trace: RequestRecord = field(default_factory=unrecorded, compare=False)  # notes what happens to the request
    salt: bytes = b""  # tenant's share of the block hashes
    priority: int = 0  # a lower number counts as older, see mesh/rules.py
    choices: int = 1  # choices of the client's request, of which this is one
    prompt_field: str = "prompt"  # field of the prompt, as the client's front door spells it
    max_tokens_field: str = "max_tokens"
    # Block hashes of the prompt by class and page size; choices of one prompt share them.
    hashes: dict[tuple[str, int], list[bytes]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        assert self.prompt, "validation refuses empty prompts"
        assert len(self.emitted) < self.sampling.max_tokens, "validation finishes choices that are already complete"


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


class TokenStream(Protocol):
    """The tokens of one choice, as a front door reads them."""

    def events(self) -> AsyncIterator[Token]:
        """Yield new tokens from position len(emitted) on, up to a token whose end is not NONE. Raises mesh.errors
        only."""

    @property
    def numerics(self) -> str:
        """Numerics class and fingerprint of the latest token; known after the first token."""

    @property
    def timings(self) -> Timings: ...

    def cancel(self, *, complete: bool = False) -> None:
        """Free everything behind this choice; idempotent, also after the end. `complete`: the client has its whole
        answer, for instance up to a stop string."""


class Core(Protocol):
    @property
    def limits(self) -> DoorConfig:
        """Limits of one request."""

    def admit(self, choices: int) -> None:
        """Raise one of mesh.errors if so many choices of one request cannot be accepted now."""

    def load(self) -> Mapping[str, int]:
        """Number of accepted choices that run, and that wait for their first token."""

    def models(self) -> tuple[str, ...]:
        """Names that clients may put into `model`."""

    def healthy(self) -> bool:
        """Whether a request can be served now."""

    def tiers(self) -> Mapping[str, int]:
        """Number of attached workers of each tier."""

    @property
    def model_hash(self) -> str:
        """Hash of the model's weights; empty while no worker is attached."""

    @property
    def context_tokens(self) -> int:
        """Smallest context of the attached workers; 0 while no worker is attached."""

    @property
    def largest_pool_tokens(self) -> int:
        """Tokens that the largest decode pool holds; 0 while no decode worker is attached."""

    def count_error(self, error: BatonError, *, refused: bool = False) -> None:
        """A front door sends this error to a client. `refused`: no choice of the request was submitted."""

    def submit(self, choice: ChoiceRequest) -> TokenStream:
        """Accept a choice without waiting, or raise one of mesh.errors."""
