"""Sends one streamed request to the server and fills in its record: the time of every chunk, the usage, or the error.

The clock is the event loop's. Text in an error comes from the server: it is made printable."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from cli.connecting.answer_text import message_of, printable
from cli.connecting.http_client import Connect, HttpClient, HttpResponse, RequestFailed, decoded
from cli.connecting.http_url import HttpUrl
from cli.load.event_stream import EventParser, EventTooLong
from cli.load.record import MeasuredRequest

DRAIN_SECONDS = 0.5  # after the last event, for the end of the body; then the connection is not reused
TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning", "tool_calls")


class LoadTarget:
    def __init__(
        self, url: HttpUrl, *, headers: Mapping[str, str], timeout_seconds: float, connect: Connect | None = None
    ) -> None:
        self.url = url
        self._timeout_seconds = timeout_seconds  # time that one whole request may take
        self._http = HttpClient(url, headers, connect)

    async def perform(self, path: str, body: bytes, record: MeasuredRequest) -> None:
        """Send and listen to the end. A cancelled request keeps `ended` None."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._listen(path, body, record)
        except TimeoutError:
            record.error, record.detail = "timeout", f"no whole answer after {self._timeout_seconds:g} s"
        except RequestFailed as error:
            record.error, record.detail = error.kind, error.detail
        if record.ended is None or record.error:
            record.ended = asyncio.get_running_loop().time()

    async def fetch(self, method: str, path: str, body: object = None, *, seconds: float) -> tuple[int, Any]:
        """Status and decoded JSON (None where it is none) of a request at the root of the server."""
        return await self._http.fetch(method, path, body, seconds=seconds)

    def close(self) -> None:
        self._http.close()

    async def _listen(self, path: str, body: bytes, record: MeasuredRequest) -> None:
        loop = asyncio.get_running_loop()
        async with self._http.send("POST", f"{self.url.path}{path}", body) as response:
            await _check(response)
            parser, done, now = EventParser(), False, loop.time()
            async with aclosing(response.pieces()) as pieces:
                async for piece in pieces:
                    now = loop.time()
                    done = _note_all(record, parser, piece, now)
                    if done:
                        break
                if done:
                    record.ended = now
                    await _drain(pieces)
        if record.first is None:
            raise RequestFailed("empty answer", "the stream holds neither text nor a finish reason")
        if not done and record.finish is None:
            raise RequestFailed("cut off", "the stream ends without a finish reason")
        record.ended = now


async def _check(response: HttpResponse) -> None:
    """RequestFailed unless a stream of events follows."""
    response.refuse_redirect()
    if response.status != 200:
        raise RequestFailed(f"HTTP {response.status}", message_of(decoded(await response.body())))
    if (coding := response.headers.get("content-encoding", "identity").lower()) != "identity":
        raise RequestFailed("broken HTTP", printable(f"the answer is compressed ({coding}), which was not asked for"))
    kind = response.headers.get("content-type", "")
    if not kind.lower().startswith("text/event-stream"):
        raise RequestFailed("no stream", printable(f"the answer is {kind or 'of no type'}, not text/event-stream"))


def _note_all(record: MeasuredRequest, parser: EventParser, piece: bytes, now: float) -> bool:
    """True at the event that ends the stream."""
    try:
        events = parser.feed(piece)
    except EventTooLong:
        raise RequestFailed("broken answer", "an event of the stream has no end") from None
    for data in events:
        if data.strip() == b"[DONE]":
            return True
        _note(record, data, now)
    return False


def _note(record: MeasuredRequest, data: bytes, now: float) -> None:
    event = decoded(data)
    if not isinstance(event, dict):
        raise RequestFailed("broken answer", printable(f"an event is no JSON object: {data[:60]!r}"))
    if event.get("error") or event.get("object") == "error":
        raise RequestFailed("error in stream", message_of(event))
    if isinstance(usage := event.get("usage"), dict):
        record.prompt_tokens = _count(usage.get("prompt_tokens"), record.prompt_tokens)
        record.completion_tokens = _count(usage.get("completion_tokens"), record.completion_tokens)
        if isinstance(details := usage.get("prompt_tokens_details"), dict):
            record.cached_tokens = _count(details.get("cached_tokens"), record.cached_tokens)
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        parts = delta if isinstance(delta, dict) else choice
        if any(parts.get(name) for name in TEXT_FIELDS):
            record.chunks.append(now)
        if choice.get("finish_reason"):
            record.finish = now


async def _drain(pieces: Any) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                pass
    except (TimeoutError, RequestFailed, asyncio.IncompleteReadError, OSError):
        pass  # the answer is whole; only the connection is lost


def _count(value: object, otherwise: int | None) -> int | None:
    return value if type(value) is int and value >= 0 else otherwise
