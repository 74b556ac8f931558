"""Numbers that a field of a request may have, beyond its type: one definition for the checks and for clients.

`Fields.within` refuses the others, and gateway/dialects/reference/bounds.py shows the ranges in /openapi.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.tenants.admission import MAX_PRIORITY
from mesh.messages.jobs import FEW_LISTED


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float | None = None  # None: no bound but the model's
    above: bool = False  # the number must be larger than `low`

    def holds(self, value: float) -> bool:
        """Whether the number may be sent; NaN and infinity never may."""
        if isinstance(value, float) and not math.isfinite(value):
            return False
        beyond = self.high is not None and value > self.high
        return not (value < self.low or beyond or (self.above and value == self.low))

    @property
    def words(self) -> str:
        low, high = (f"{each:g}" if isinstance(each, float) else str(each) for each in (self.low, self.high))
        if self.high is None:
            return f"at least {low}"
        return f"above {low} and at most {high}" if self.above else f"from {low} to {high}"

    @property
    def schema(self) -> dict[str, float]:
        """The bounds as keywords of JSON schema."""
        lowest = {"exclusiveMinimum" if self.above else "minimum": self.low}
        return lowest if self.high is None else lowest | {"maximum": self.high}


MAX_TOP_LOGPROBS = FEW_LISTED
MAX_SALT_CHARACTERS = 128
SIXTY_FOUR_BITS = 2**64 - 1
PRIORITIES = Range(-MAX_PRIORITY, MAX_PRIORITY)
_PENALTIES = Range(-2.0, 2.0)
RANGES: Mapping[str, Range] = {
    "max_tokens": Range(0),
    "temperature": Range(0.0, 100.0),
    "top_k": Range(-1, 2**31 - 1),  # -1 is off, as 0 is
    "top_p": Range(0.0, 1.0, above=True),
    "min_p": Range(0.0, 1.0),
    "thinking_token_budget": Range(-1, 2**31 - 1),  # -1 is no limit
    "seed": Range(-(2**63), SIXTY_FOUR_BITS),
    "priority": PRIORITIES,
}
ADJUSTMENTS: Mapping[str, Range] = {
    "repetition_penalty": Range(0.01, 100.0),
    "frequency_penalty": _PENALTIES,
    "presence_penalty": _PENALTIES,
}
BIASES = Range(-100.0, 100.0)


def listed_range(most: int, vocabulary: int) -> Range:
    """Numbers of likeliest tokens that a request may list, under this setting max_logprobs. -1 is the whole vocabulary,
    as is the setting's."""
    limit = vocabulary if most == -1 else most
    return Range(-1 if limit >= vocabulary else 0, limit)
