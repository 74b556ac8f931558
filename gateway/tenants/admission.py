"""One client request as its tenant's: what it may run, what it spends, and whose cache it shares.

Step 1 of a request's life. A front door makes the admission before it reads the body, validation adds the choices when
it knows them (gateway/validation/validate.py), and the record of the request reports what runs
(gateway/tracing/record.py). It ends with the request's last byte."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Protocol

from gateway.tenants.limits import TenantUse
from mesh.errors import Internal, InvalidRequest

AHEAD_TOKENS = 256  # tokens put aside for each choice that runs: many requests cannot begin on the last tokens at once
SALT_BYTES = 16
MAX_PRIORITY = 600


class Admission(Protocol):
    @property
    def tenant(self) -> str:
        """Name of the tenant; empty: the gateway knows none."""

    def salt(self, text: str) -> bytes:
        """The tenant's share of the block hashes, for a client's `cache_salt`, which may be empty."""

    def priority(self, own: int, field: str) -> int:
        """The priority of a request whose client asks for this one; `field` is the client's spelling."""

    def adds(self, *, prompt_tokens: int, choices: int, max_tokens: int) -> None:
        """A valid prompt will run `choices` choices. Raises RateLimited, and nothing is spent then."""

    def begins(self) -> None:
        """Something of the request runs from now on: its prompts are spent."""

    def spends(self) -> None:
        """A choice has another token."""

    def close(self) -> None:
        """The request is over; idempotent."""


class OpenAdmission:
    """A request to a gateway without keys: nobody is refused, and clients choose their salts."""

    tenant = ""

    def salt(self, text: str) -> bytes:
        return plain_salt(text)

    def priority(self, own: int, field: str) -> int:
        return own

    def adds(self, *, prompt_tokens: int, choices: int, max_tokens: int) -> None:
        pass

    def begins(self) -> None:
        pass

    def spends(self) -> None:
        pass

    def close(self) -> None:
        pass


class UnknownAdmission(OpenAdmission):
    """A request that no front door has admitted, at a gateway with keys: nothing of it can run."""

    def salt(self, text: str) -> bytes:
        raise Internal("a front door passed on a request without asking whose it is")

    def adds(self, *, prompt_tokens: int, choices: int, max_tokens: int) -> None:
        self.salt("")


class TenantAdmission:
    """A request of a known tenant."""

    __slots__ = ("_aside", "_asked", "_choices", "_clock", "_prompt_tokens", "_use")

    def __init__(self, use: TenantUse, clock: Callable[[], float]) -> None:
        self._use, self._clock = use, clock
        self._choices = 0  # counted as running
        self._asked = 0  # that validation has added
        self._prompt_tokens = 0  # tokens in prompts that have not begun
        self._aside = 0  # tokens put aside for its choices

    def starts(self, *, spends: bool) -> None:
        """The request counts as one choice until it is known to have more. Raises RateLimited. `spends`: it needs
        tokens too."""
        if spends:
            self._use.check_tokens(self._clock())
        self._run(1)
        self._use.requests += 1

    @property
    def tenant(self) -> str:
        return self._use.tenant.name

    @property
    def operator(self) -> bool:
        return self._use.tenant.operator

    def salt(self, text: str) -> bytes:
        """Tenants with equal texts, or none, get different salts, and no text makes one tenant's salt another's."""
        return hmac.digest(self._use.tenant.salt_key, plain_salt(text), "sha256")[:SALT_BYTES]

    def priority(self, own: int, field: str) -> int:
        tenant = self._use.tenant
        low, high = tenant.priorities
        if own and not low <= own <= high:
            raise InvalidRequest(field, f"{field} must be 0, or from {low} to {high} for {tenant.name}, not {own}")
        return min(max(tenant.priority + own, -MAX_PRIORITY), MAX_PRIORITY)

    def adds(self, *, prompt_tokens: int, choices: int, max_tokens: int) -> None:
        use = self._use
        use.check_tokens(self._clock(), own=self._aside + self._prompt_tokens)
        self._run(max(self._asked + choices, 1) - self._choices)
        self._asked += choices
        aside = min(max_tokens, AHEAD_TOKENS) * choices
        self._aside += aside
        self._prompt_tokens += prompt_tokens
        use.aside += aside + prompt_tokens

    def begins(self) -> None:
        spent, self._prompt_tokens = self._prompt_tokens, 0
        self._use.aside -= spent
        self._use.level -= spent
        self._use.prompt_tokens += spent

    def spends(self) -> None:
        self._use.level -= 1
        self._use.generated_tokens += 1

    def close(self) -> None:
        self._use.aside -= self._aside + self._prompt_tokens
        self._use.choices -= self._choices
        self._aside = self._prompt_tokens = self._choices = self._asked = 0

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers by which clients pace themselves; none without a rate."""
        limit = self._use.tenant.tokens_per_minute
        if not limit:
            return []
        left = str(max(0, int(self._use.left(self._clock()))))
        return [(b"x-ratelimit-limit-tokens", str(limit).encode()), (b"x-ratelimit-remaining-tokens", left.encode())]

    def _run(self, more: int) -> None:
        self._use.check_choices(more, self._choices)
        self._use.choices += more
        self._choices += more


OPEN, UNKNOWN = OpenAdmission(), UnknownAdmission()


def plain_salt(text: str) -> bytes:
    """A client's `cache_salt` as bytes; empty without one."""
    return hashlib.blake2b(text.encode(), digest_size=SALT_BYTES).digest() if text else b""
