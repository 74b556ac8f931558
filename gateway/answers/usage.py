"""Token counts and timings of whole answers, for the last event of both front doors.

An answer has one Timings per choice that ran; a choice that the client brought along complete has none."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.answers.answer import Answer

_SECONDS = (
    "queue_seconds",
    "prefill_seconds",
    "first_token_seconds",
    "handoff_seconds",
    "decode_seconds",
    "total_seconds",
)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    prompt_tokens: int
    completion_tokens: int  # tokens of all choices, those that the client brought along included
    cached_tokens: int  # prompt tokens whose pages a prefix cache held
    drafted_tokens: int  # drafts that the model verified, of all choices
    accepted_tokens: int  # drafts that became tokens
    reasoning_tokens: int = 0  # those of the completion tokens that are reasoning


def usage_of(answers: Sequence[Answer]) -> TokenUsage:
    """Sums over the answers to several prompts."""
    timings = [each for answer in answers for each in answer.timings]
    return TokenUsage(
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        completion_tokens=sum(answer.completion_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        drafted_tokens=sum(each.drafted_tokens for each in timings),
        accepted_tokens=sum(each.accepted_tokens for each in timings),
        reasoning_tokens=sum(answer.reasoning_tokens for answer in answers),
    )


def timings_of(answers: Sequence[Answer]) -> dict[str, float]:
    """Seconds of the slowest choice, and decode steps; what was not measured is left out."""
    timings = [each for answer in answers for each in answer.timings]
    found: dict[str, float] = {}
    for name in _SECONDS:
        known = [value for each in timings if (value := getattr(each, name)) is not None]
        if known:
            found[name] = max(known)
    steps, accepted = sum(each.decode_steps for each in timings), sum(each.accepted_tokens for each in timings)
    if steps:
        found["decode_steps"] = max(each.decode_steps for each in timings)
        found["tokens_per_step"] = (steps + accepted) / steps
    return found
