"""Clients of bench/overload.py: each opens a connection, sends one request and notes when the bytes of its answer come.

They look at bytes only, so that thousands of them cost little beside the mesh that is measured."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from bench.overload_figures import Served
from cli.arrangements.stream import DONE, EVENT, exchange, request_bytes


@dataclass(frozen=True, slots=True)
class RequestKind:
    name: str
    prompt_tokens: int
    answer_tokens: int


KINDS = (RequestKind("short", 48, 32), RequestKind("middle", 256, 96), RequestKind("long", 1024, 192))


async def serve_one(port: int, kind: RequestKind, prompt: Sequence[int], waits_seconds: float | None = None) -> Served:
    """Send one request; returns when its answer, or the refusal, is whole. `waits_seconds`: how long its client waits
    for it, as the request says."""
    loop = asyncio.get_running_loop()
    came = loop.time()
    try:
        client = await exchange(port, request_bytes(kind.answer_tokens, prompt, port, waits_seconds), OneAnswer)
    except OSError as error:
        return Served(kind.name, kind.prompt_tokens, kind.answer_tokens, came, 0, ended=loop.time(), problem=str(error))
    size = kind.prompt_tokens, kind.answer_tokens
    times = client.first, client.last, loop.time()
    return Served(
        kind.name, *size, came, client.status, *times, done=client.done, problem=client.problem, waits=waits_seconds
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
        self._tail = text[-len(DONE) :]
        if self.status != 200:
            self.over.set()
            return
        if EVENT in text:
            if DONE in text:
                self.done = True
                self.over.set()
                return
            self.first = self.first or now
            self.last = now

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            self.problem = f"the connection broke: {exc}"
            self.over.set()
