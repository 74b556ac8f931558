"""What the front door asks of the gateway's core, and what it gets back: the seam between surface and sequencer.

The surface (http, grpc_api) turns a client's request into one ChoiceRequest per choice, valid in every respect; the
core routes it and hands back its tokens, in position order, each exactly once, whatever dies behind it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from mesh.messages import Sampling, Token


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice of one request; complete and valid."""

    request_id: str  # as clients and traces know it; choices of one request share it
    model: str
    prompt: tuple[int, ...]
    emitted: tuple[int, ...]  # what the client already has of this choice
    sampling: Sampling  # max_tokens and min_tokens count `emitted` too
    deadline_seconds: float | None = None  # from now
    allow_class_change: bool = False
    numerics: str = ""  # the class that `emitted` came from, as Handle.numerics told it; "": any
    traceparent: str = ""
    salt: bytes = b""
    priority: int = 0  # lower goes first

    def __post_init__(self) -> None:
        assert self.prompt, "the surface refuses empty prompts"
        assert len(self.emitted) < self.sampling.max_tokens, "the surface finishes what is already complete"


class Timings(Protocol):
    """Of one choice, in seconds since it was accepted."""

    @property
    def queue_seconds(self) -> float | None:
        """Until the prompt's first step; None: not known."""

    @property
    def prefill_seconds(self) -> float | None:
        """From then to the first token."""

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, found in a prefix cache."""

    @property
    def first_token_seconds(self) -> float: ...

    @property
    def handoff_seconds(self) -> float:
        """From the first token until decode went on."""

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""

    @property
    def total_seconds(self) -> float: ...

    @property
    def attempts(self) -> int: ...

    @property
    def drafted_tokens(self) -> int:
        """Proposed ahead and verified, beside the tokens that were taken."""

    @property
    def accepted_tokens(self) -> int:
        """Taken tokens that were proposed ahead."""

    @property
    def decode_steps(self) -> int:
        """That yielded the tokens behind the first."""


class Handle(Protocol):
    """One choice as the front door holds it."""

    def events(self) -> AsyncIterator[Token]:
        """New tokens from position len(emitted) on; ends after one whose end is not NONE. Raises mesh.errors only."""

    @property
    def seed(self) -> int: ...

    @property
    def numerics(self) -> str:
        """The class of the latest token, its fingerprint included; known once the first token came."""

    @property
    def timings(self) -> Timings: ...

    def cancel(self) -> None:
        """Free everything behind it; idempotent, also after the end."""


class Core(Protocol):
    def models(self) -> tuple[str, ...]:
        """What clients may ask for by name."""

    def healthy(self) -> bool:
        """Can a request be served now?"""

    def tiers(self) -> Mapping[str, int]:
        """How many workers of each tier are there."""

    @property
    def context_tokens(self) -> int:
        """Of the workers; 0 while none is known."""

    @property
    def largest_pool_tokens(self) -> int:
        """Tokens that the largest decode pool holds; 0 while no decode worker is known."""

    def submit(self, spec: ChoiceRequest) -> Handle:
        """Never waits; refuses with mesh.errors."""
