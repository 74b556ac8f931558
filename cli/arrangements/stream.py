"""One client that streams one answer and notes when each token's event comes. It looks at bytes only, so that it costs
little beside the mesh that is measured."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

EVENT = b"\n\n\r\n"  # the end of an event, and of the chunk that it is in
ALIVE = b": keep-alive" + EVENT  # comes every 15 seconds in which no token does
DONE = b"data: [DONE]"
GIVE_UP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StreamTimes:
    sent: float
    tokens: tuple[float, ...]  # when each event with a token came
    problem: str = ""

    @property
    def ended(self) -> float:
        return self.tokens[-1] if self.tokens else self.sent


@dataclass(slots=True, eq=False)
class EventTimes(asyncio.Protocol):
    over: asyncio.Event = field(default_factory=asyncio.Event)
    times: list[float] = field(default_factory=list)
    problem: str = ""
    _tail: bytes = b""

    def data_received(self, data: bytes) -> None:
        now, text = asyncio.get_running_loop().time(), self._tail + data
        done = DONE in text
        self._tail = text[text.rfind(EVENT) + len(EVENT) :] if EVENT in text else text
        self.times += [now] * max(0, token_events(text) - done)
        if done:
            self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            self.problem = f"the connection broke: {exc}: {self._tail[:200]!r}"
            self.over.set()


def token_events(text: bytes) -> int:
    """Events that end in this text and carry something."""
    return text.count(EVENT) - text.count(ALIVE)


async def stream_one(port: int, prompt: Sequence[int], answer: int) -> StreamTimes:
    sent = asyncio.get_running_loop().time()
    try:
        client = await exchange(port, request_bytes(answer, prompt, port), EventTimes)
    except OSError as error:
        return StreamTimes(sent, (), str(error))
    return StreamTimes(sent, tuple(client.times[:answer]), client.problem)


class OneExchange(Protocol):
    """The client's end of a connection that carries one request."""

    over: asyncio.Event  # its answer is whole, or there will be none
    problem: str


Client = TypeVar("Client", bound=OneExchange)


async def exchange(port: int, request: bytes, make: Callable[[], Client]) -> Client:
    """Open a connection, send one request and wait until its answer is over. OSError: there is no connection."""
    connect = cast(Callable[[], Any], make)
    transport, client = await asyncio.get_running_loop().create_connection(connect, "127.0.0.1", port)
    transport.write(request)
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await client.over.wait()
    except TimeoutError:
        client.problem = f"no end after {GIVE_UP_SECONDS:g} s"
    finally:
        transport.close()  # a client that is cancelled leaves too
    return cast(Client, client)


def request_bytes(answer: int, prompt: Sequence[int], port: int, waits_seconds: float | None = None) -> bytes:
    """A request for a stream of exactly so many tokens. `waits_seconds`: how long its client waits for all of them."""
    body = {"prompt": list(prompt), "stream": True, "temperature": 0, "max_tokens": answer}
    waits = [] if waits_seconds is None else [f"x-request-timeout-ms: {int(waits_seconds * 1000)}"]
    return post_bytes(port, body | {"ignore_eos": True}, *waits, "connection: close")


def post_bytes(port: int, body: Mapping[str, Any], *headers: str) -> bytes:
    """A request for completions with further lines in its head."""
    content = json.dumps(body).encode()
    lines = [f"host: 127.0.0.1:{port}", "content-type: application/json", *headers, f"content-length: {len(content)}"]
    return "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", ""]).encode() + content
