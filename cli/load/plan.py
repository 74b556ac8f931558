"""The requests of one run before they are sent: their lengths, their arrival times and the prefixes that they share.

Shapes (cli/load/shapes.py) and public traces (cli/load/trace_files.py) both become such a list."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

BLOCK_TOKENS = 512  # tokens that one id in `blocks` stands for, as in Mooncake's traces


class LoadError(Exception):
    """The run cannot begin: wrong usage, an unreadable trace or an unreachable server. The message is for users."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    input_tokens: int
    output_tokens: int
    at_seconds: float | None = None  # arrival after the first request; None where the source has no times
    blocks: tuple[int, ...] = ()  # the prompt begins with these blocks; equal ids mean equal tokens

    def __post_init__(self) -> None:
        assert self.input_tokens >= 1 and self.output_tokens >= 1


def capped(requests: Sequence[LoadRequest], context_tokens: int | None) -> tuple[list[LoadRequest], int]:
    """The requests as they fit into the model's context, and how many of them were longer.

    An answer keeps its length up to half the context; the prompt gets the rest."""
    if context_tokens is None:
        return list(requests), 0
    fitting = [_cap(request, context_tokens) for request in requests]
    return fitting, sum(a != b for a, b in zip(requests, fitting, strict=True))


def _cap(request: LoadRequest, context_tokens: int) -> LoadRequest:
    if request.input_tokens + request.output_tokens <= context_tokens:
        return request
    answer = max(1, min(request.output_tokens, context_tokens // 2))
    prompt = max(1, min(request.input_tokens, context_tokens - answer))
    return replace(request, input_tokens=prompt, output_tokens=answer)
