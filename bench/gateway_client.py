"""Clients of bench/gateway.py: sockets that send one request each and count the events that come back.

They look at bytes only, so that 256 of them cost little beside the server that is measured."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from cli.arrangements.stream import EVENT, post_bytes


class StreamClient(asyncio.Protocol):
    """One connection; `on_events` gets the number of events in what has just come."""

    def __init__(self, on_events: Callable[["StreamClient", int], None]) -> None:
        self.on_events = on_events
        self._begun = False
        self.events = 0
        self.asked_seconds = self.first_seconds = self.last_seconds = 0.0
        self.gaps: list[float] | None = None  # seconds between events, once somebody wants them
        self.sample = b""  # the first bytes that came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._clock = asyncio.get_running_loop().time

    def ask(self, request: bytes) -> None:
        self.asked_seconds = self._clock()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        count = data.count(EVENT)
        if not count:
            return
        now = self._clock()
        if not self.events:
            self.first_seconds, self.sample = now, data
        elif self.gaps is not None:
            self.gaps.append(now - self.last_seconds)
        self.last_seconds = now
        self.events += count
        self.on_events(self, count)

    @property
    def sample_bytes(self) -> int:
        """Length of the first event that came, without its chunk's frame."""
        body = self.sample[self.sample.index(b"data: ") :]
        return body.index(EVENT) + 2


def request_bytes(max_tokens: int, port: int, n: int = 1) -> bytes:
    body = {"model": "baton-tiny", "prompt": "Once", "stream": True, "temperature": 0, "max_tokens": max_tokens}
    return post_bytes(port, body | {"ignore_eos": True, "n": n})


async def connect(port: int, on_events: Callable[[StreamClient, int], None]) -> StreamClient:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: StreamClient(on_events), "127.0.0.1", port)
    return protocol


def unread_connection(port: int, request: bytes) -> socket.socket:
    """A client that asks and never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    return connection
