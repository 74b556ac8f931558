"""The measured life of one request. The task that sends the request fills it in; nothing else writes to it.

All times are of the event loop's clock, so they may be compared within one run only."""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class MeasuredRequest:
    number: int
    scheduled: float
    begun: float  # when the generator began to send it
    input_tokens: int  # as planned
    output_tokens: int  # as planned
    chunks: list[float] = field(default_factory=list)  # when each chunk with text arrived
    finish: float | None = None  # when the chunk with the finish reason arrived
    ended: float | None = None  # None while the request runs
    prompt_tokens: int | None = None  # the server's count
    completion_tokens: int | None = None  # the server's count
    cached_tokens: int | None = None  # the server's count
    error: str = ""  # kind
    detail: str = ""

    @property
    def why(self) -> str:
        """The error in words."""
        return f"{self.error}: {self.detail}" if self.detail else self.error

    @property
    def finished(self) -> bool:
        return self.ended is not None and not self.error

    @property
    def first(self) -> float | None:
        """When the first token came. An answer without any text has only its end."""
        return self.chunks[0] if self.chunks else self.finish

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.scheduled

    @property
    def e2e(self) -> float | None:
        return None if self.ended is None else self.ended - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None without the server's count of tokens, and for one token."""
        if self.first is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        last = max(self.chunks[-1] if self.chunks else self.first, self.finish or self.first)
        return (last - self.first) / (self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Time between two chunks with text; a chunk may hold several tokens."""
        return [after - before for before, after in pairwise(self.chunks)]
