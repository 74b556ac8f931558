"""Compresses whole answers for clients that read gzip: JSON and metrics from LEAST_BYTES on, never a stream.

A stream's events leave one by one, and each is smaller than what a flushed gzip block costs."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[Any], Awaitable[None]]

LEAST_BYTES = 1024
THREAD_BYTES = 32 * 1024  # larger answers are compressed in a thread
LEVEL = 5
KINDS = (b"application/json", b"text/plain", b"application/openmetrics-text")


def reads_gzip(accept: bytes) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    for part in accept.lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip", b"*"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def compressing(send: Send) -> Send:
    """Sends the same answer, compressed where that helps."""
    head: dict[str, Any] | None = None
    decided = False

    async def send_first(message: Any) -> None:
        nonlocal head, decided
        if message["type"] == "http.response.start":
            if _may_compress(message):
                head = message
                return
            decided = True
            await send(message)
            return
        assert head is not None, "a body follows its head"
        content = message.get("body", b"")
        decided = True
        if not message.get("more_body") and len(content) >= LEAST_BYTES:
            content = await _compress(content)
            kept = [(name, value) for name, value in head["headers"] if name != b"content-length"]
            coded = [(b"content-encoding", b"gzip"), (b"content-length", str(len(content)).encode())]
            head["headers"], message = [*kept, *coded], message | {"body": content}
        head["headers"] = [*head["headers"], (b"vary", b"accept-encoding")]
        await send(head)
        await send(message)

    def send_any(message: Any) -> Awaitable[None]:
        return send(message) if decided else send_first(message)

    return send_any


def _may_compress(head: Any) -> bool:
    headers = dict(head.get("headers", ()))
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    plain = b"content-encoding" not in headers and b"etag" not in headers
    return plain and kind in KINDS and head["status"] not in (204, 304)


async def _compress(content: bytes) -> bytes:
    if len(content) < THREAD_BYTES:
        return gzip.compress(content, LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, content, LEVEL, mtime=0)
