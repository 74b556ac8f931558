"""The rule by which requests are tried again: which answers mean "later", and how long to wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

# 408: the body came too slowly; 429: too many wait; 502: a proxy's gateway restarts; 503: no worker can take it now.
LATER = frozenset({408, 429, 502, 503})
# The key or its rights are wrong, so every further request would end in this way.
HOPELESS = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class RetryRule:
    tries: int | None = None  # None: for ever
    first_seconds: float = 0.5
    most_seconds: float = 10.0  # between two tries, unless the server asks for more

    def may_again(self, tried: int) -> bool:
        return self.tries is None or tried < self.tries

    def pause_seconds(self, tried: int, asked_seconds: float, random: Random) -> float:
        """Pause behind the try of this number, from 1. It doubles each time, is never shorter than what the server asks
        for, and is spread, so that requests which failed together do not come back together."""
        own = min(self.most_seconds, self.first_seconds * 2.0 ** min(tried - 1, 30)) * random.uniform(0.5, 1.0)
        return max(own, asked_seconds * random.uniform(1.0, 1.25))


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Seconds that the answer asks a client to wait; 0 where it names none, or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return 0.0
