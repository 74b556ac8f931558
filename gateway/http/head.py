"""The head of one HTTP request: what must be right before anything reads the rest of it.

Proxies on the way may read such a request otherwise than this gateway does, and pass on a part of it as another one."""

from collections.abc import Sequence

VERSIONS = ("1.0", "1.1")


def fault_of(version: str, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
    """Status and message for a head that the gateway refuses. Names of headers are in lower case."""
    if version not in VERSIONS:
        return 505, f"the gateway speaks HTTP/1.1 and HTTP/1.0, not HTTP/{version}"
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (version == "1.1" and not hosts):
        return 400, f"the request has {hosts or 'no'} Host headers; HTTP/1.1 wants one"
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (version == "1.0" or codings != [b"chunked"]):
        return 501, "the only transfer-encoding that the gateway reads is chunked, over HTTP/1.1"
    return None
