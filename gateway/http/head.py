"""The heads of one HTTP request and its answer: what must be right before anything reads the rest, and how it is sent.

Proxies on the way may read a faulty head otherwise than this gateway does, and pass on a part of it as another one."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus

Headers = Sequence[tuple[bytes, bytes]]

VERSIONS = ("1.0", "1.1")
BODILESS = (204, 304)  # statuses of answers without a body
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NAME, _VALUE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def fault_of(version: str, headers: Headers) -> tuple[int, str] | None:
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


def expects_continue(headers: Headers) -> bool:
    """The client sends its body when it has heard that it may."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def ends_connection(headers: Headers) -> bool:
    values = [value.lower() for name, value in headers if name == b"connection"]
    return any(word.strip() == b"close" for value in values for word in value.split(b","))


def length_of(headers: Headers) -> int | None:
    """The length of the body as the head tells it; None: it does not."""
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def answer_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is no header")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
