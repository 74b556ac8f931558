"""How much one tenant uses: a bucket of tokens that fills with time, and the choices that run.

A request may begin while the bucket holds more than running requests have put aside. What it spends beyond that is a
debt, which the bucket fills up before the next request begins: so a large request is never refused for ever, and over
time nobody spends more than the rate. Nothing here waits; times are those of the event loop."""

from collections import Counter
from dataclasses import dataclass, field

from gateway.tenants.rows import Tenant
from mesh.errors import RateLimited

SHORTEST_WAIT_SECONDS = 0.1
CHOICE_WAIT_SECONDS = 1.0  # after which a client may ask again for a place among the running choices
TOKENS, CHOICES = "tokens", "choices"  # why a request is refused


@dataclass(slots=True)
class TenantUse:
    """One tenant at this gateway: what runs now, and counts since the gateway's start."""

    tenant: Tenant
    filled_seconds: float  # when the bucket was last filled
    level: float = 0.0  # tokens in the bucket; below 0: a debt
    aside: int = 0  # tokens that running requests have put aside
    choices: int = 0  # choices that run
    requests: int = 0  # requests that were let in
    prompt_tokens: int = 0
    generated_tokens: int = 0
    refused: Counter[str] = field(default_factory=lambda: Counter({TOKENS: 0, CHOICES: 0}))

    def __post_init__(self) -> None:
        self.level = float(self.tenant.bucket_tokens)

    def adopt(self, tenant: Tenant, now: float) -> None:
        """The tenant's row has changed. A debt stays."""
        self._fill(now)
        if not self.tenant.tokens_per_minute:
            self.level = float(tenant.bucket_tokens)
        self.tenant = tenant
        self.level = min(self.level, float(tenant.bucket_tokens))

    def left(self, now: float) -> float:
        """Tokens that a new request finds; there is no limit where the rate is 0."""
        self._fill(now)
        return self.level - self.aside

    def check_tokens(self, now: float, own: int = 0) -> None:
        """Raise RateLimited unless a request may begin that has put `own` tokens aside itself."""
        rate = self.tenant.tokens_per_minute
        left = self.left(now) + own
        if not rate or left > 0:
            return
        self.refused[TOKENS] += 1
        seconds = max((1 - left) * 60 / rate, SHORTEST_WAIT_SECONDS)
        raise RateLimited(
            f"{self.tenant.name} has spent its {rate} tokens a minute; the next request may begin in {seconds:.1f} s",
            retry_after_seconds=seconds,
            details={"tenant": self.tenant.name, "limit": "tokens_per_minute"},
        )

    def check_choices(self, more: int, own: int = 0) -> None:
        """Raise RateLimited unless `more` choices may run, for a request that has `own` already."""
        limit = self.tenant.concurrent
        if not limit or not more or self.choices + more <= limit:
            return
        self.refused[CHOICES] += 1
        name, fits = self.tenant.name, own + more <= limit
        asks = "this request" if fits else f"this request with its {own + more}"
        raise RateLimited(
            f"{name} may run {limit} choices at a time, which {asks} would exceed; "
            + ("try again when another one has ended" if fits else "ask for fewer at a time"),
            retry_after_seconds=CHOICE_WAIT_SECONDS if fits else None,
            details={"tenant": name, "limit": "concurrent"},
        )

    def _fill(self, now: float) -> None:
        passed, self.filled_seconds = now - self.filled_seconds, now
        if self.tenant.tokens_per_minute:
            more = passed * self.tenant.tokens_per_minute / 60
            self.level = min(self.level + more, float(self.tenant.bucket_tokens))
