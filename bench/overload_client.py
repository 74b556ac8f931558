"""Clients of bench/overload.py: each opens a connection, sends one request and notes when the bytes of its answer come.

They look at bytes only, so that thousands of them cost little beside the mesh that is measured."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from bench.overload_figures import Served
from cli.arrangements.stream import DONE, EVENT, exchange, request_bytes, token_events


@dataclass(frozen=True, slots=True)
class RequestKind:
    name: str
    prompt_tokens: int
    answer_tokens: int


KINDS = (RequestKind("short", 48, 32), RequestKind("middle", 256, 96), RequestKind("long", 1024, 192))


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Its bytes are made before the load begins: they are no work of the time that is measured."""

    port: int
    kind: RequestKind
    content: bytes
    waits: float | None  # how long its client waits for the whole answer, as the request says


def prepare(port: int, kind: RequestKind, prompt: Sequence[int], waits: float | None = None) -> PreparedRequest:
    return PreparedRequest(port, kind, request_bytes(kind.answer_tokens, prompt, port, waits), waits)


async def serve_one(request: PreparedRequest) -> Served:
    """Send one request; returns when its answer, or the refusal, is whole."""
    loop, kind = asyncio.get_running_loop(), request.kind
    came = loop.time()
    try:
        client = await exchange(request.port, request.content, OneAnswer)
    except OSError as error:
        return Served(kind.name, kind.prompt_tokens, kind.answer_tokens, came, 0, ended=loop.time(), problem=str(error))
    size = kind.prompt_tokens, kind.answer_tokens
    times = client.first, client.last, loop.time()
    return Served(
        kind.name, *size, came, client.status, *times, done=client.done, problem=client.problem, waits=request.waits
    )


class OneAnswer(asyncio.Protocol):
    def __init__(self) -> None:
        self.over, self.status, self.done, self.problem = asyncio.Event(), 0, False, ""
        self.first = self.last = 0.0  # times of the first and the last event
        self._clock = asyncio.get_running_loop().time
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self.status = int(data[9:12])
        text, now = self._tail + data, self._clock()
        self._tail = text[text.rfind(EVENT) + len(EVENT) :] if EVENT in text else text
        if self.status != 200:
            self.over.set()
        elif DONE in text:
            self.done = True
            self.over.set()
        elif token_events(text):
            self.first = self.first or now
            self.last = now

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            self.problem = f"the connection broke: {exc}"
            self.over.set()
