"""Which pages of other sites may call the API from a browser: those of the origins in the setting `cors_origins`.

Browsers ask before they send a request that a plain form could not send (a preflight). What shows operations, the page
`/ui` and what it reads, stays with its own gateway whatever the setting says."""

import re
from collections.abc import Iterable

from gateway.dialects.endpoints.paths import shows_operations

Header = tuple[bytes, bytes]

ALL = "*"
METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
PREFLIGHT_SECONDS = 600  # for which a browser remembers the answer
EXPOSED = (
    b"x-request-id, x-error-reason, x-should-retry, retry-after, retry-after-ms, x-baton-ignored, "
    b"x-baton-tokens-spent, x-baton-receipt, request-id, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens"
)
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,4096}")


class Cors:
    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._all = ALL.encode() in self._origins

    def headers(self, path: str, headers: dict[bytes, bytes]) -> list[Header]:
        """Headers of an answer for the browser; none without an origin that may call."""
        origin = headers.get(b"origin")
        if origin is None or not self._may_call(path, origin):
            return []
        found = [(b"access-control-allow-origin", ALL.encode() if self._all else origin)]
        found.append((b"access-control-expose-headers", EXPOSED))
        return found if self._all else [*found, (b"vary", b"origin")]

    def preflight(self, path: str, headers: dict[bytes, bytes]) -> list[Header] | None:
        """The answer to a browser that asks whether it may call; None: the request is no such question."""
        allowed = self.headers(path, headers)
        if not allowed or b"access-control-request-method" not in headers:
            return None
        found = [*allowed, (b"access-control-allow-methods", METHODS)]
        wanted = headers.get(b"access-control-request-headers", b"")
        if _NAMES.fullmatch(wanted):
            found.append((b"access-control-allow-headers", wanted))
        if headers.get(b"access-control-request-private-network") == b"true":
            found.append((b"access-control-allow-private-network", b"true"))
        return [*found, (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode())]

    def _may_call(self, path: str, origin: bytes) -> bool:
        return not shows_operations(path) and (self._all or origin in self._origins)
