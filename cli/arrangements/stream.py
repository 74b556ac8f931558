"""One client that streams one answer and notes when each token's event comes. It looks at bytes only, so that it costs
little beside the mesh that is measured."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

EVENT = b"\n\n\r\n"  # the end of an event, and of the chunk that it is in
DONE = b"data: [DONE]"
GIVE_UP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StreamTimes:
    sent: float
    tokens: tuple[float, ...]  # when each event with a token came
    problem: str = ""


@dataclass(slots=True, eq=False)
class EventTimes(asyncio.Protocol):
    over: asyncio.Event = field(default_factory=asyncio.Event)
    times: list[float] = field(default_factory=list)
    problem: str = ""
    _tail: bytes = b""

    def data_received(self, data: bytes) -> None:
        now, text = asyncio.get_running_loop().time(), self._tail + data
        done = DONE in text
        events = text.count(EVENT) - done
        self._tail = text[text.rfind(EVENT) + len(EVENT) :] if EVENT in text else text
        self.times += [now] * max(0, events)
        if done:
            self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            self.problem = f"the connection broke: {exc}: {self._tail[:200]!r}"
            self.over.set()


async def stream_one(port: int, prompt: Sequence[int], answer: int) -> StreamTimes:
    loop = asyncio.get_running_loop()
    sent = loop.time()
    try:
        transport, client = await loop.create_connection(EventTimes, "127.0.0.1", port)
    except OSError as error:
        return StreamTimes(sent, (), str(error))
    transport.write(request_bytes(answer, prompt, port))
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await client.over.wait()
    except TimeoutError:
        client.problem = f"no end after {GIVE_UP_SECONDS:g} s"
    finally:
        transport.close()
    return StreamTimes(sent, tuple(client.times[:answer]), client.problem)


def request_bytes(answer: int, prompt: Sequence[int], port: int, waits_seconds: float | None = None) -> bytes:
    """A request for a stream of exactly so many tokens. `waits_seconds`: how long its client waits for all of them."""
    body = {"prompt": list(prompt), "stream": True, "temperature": 0, "max_tokens": answer}
    content = json.dumps(body | {"ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    if waits_seconds is not None:
        head += f"x-request-timeout-ms: {int(waits_seconds * 1000)}\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
