"""A connection inside this process: the same bytes through the same code, without a socket.

It stands beside the connections of gateway/http/server.py as the in-memory network stands beside gRPC: simulations and
tests reach every moment of a connection with it. Bytes take `latency_seconds` each way; a client that does not read
leaves them with the server, which notices."""

import asyncio
from collections.abc import Callable
from typing import Any

HIGH_BYTES = 64 * 1024  # unless the server sets another limit
PEER, HERE = ("127.0.0.1", 50_000), ("127.0.0.1", 8000)


class InProcessTransport(asyncio.Transport):
    """The server's end."""

    def __init__(self, client: "InProcessClient") -> None:
        super().__init__({"peername": PEER, "sockname": HERE})
        self._client, self._loop = client, asyncio.get_running_loop()
        self.protocol: asyncio.Protocol | None = None
        self._waiting = bytearray()  # that the client has not read
        self._high = HIGH_BYTES
        self._behind = False
        self._closing = False
        self._reads = True
        self._came: list[bytes] = []  # while the server does not read

    # ---- what the server calls

    def write(self, data: Any) -> None:
        if not self._closing:
            self._waiting += data
            self._client.later(self.deliver)
            if len(self._waiting) > self._high and not self._behind and self.protocol is not None:
                self._behind = True
                self.protocol.pause_writing()

    def write_eof(self) -> None:
        self._client.later(self._client.end)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._client.later(self._client.end)
            self._loop.call_soon(self._lost)

    def abort(self) -> None:
        self._waiting.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        came, self._came = self._came, []
        for data in came:
            self._loop.call_soon(self.arrive, data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    # ---- what the client's end calls

    def arrive(self, data: bytes) -> None:
        if self._closing or self.protocol is None:
            return
        if not self._reads:
            self._came.append(data)
            return
        self.protocol.data_received(data)

    def deliver(self) -> None:
        """The client takes what waits, unless it does not read."""
        if not self._client.reads:
            return
        data, self._waiting = bytes(self._waiting), bytearray()
        if data:
            self._client.take(data)
        if self._behind and self.protocol is not None:
            self._behind = False
            self.protocol.resume_writing()

    def leave(self) -> None:
        """The client has hung up."""
        self._closing = True
        self._lost()

    def _lost(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(None)


class InProcessClient:
    """The client's end of one connection."""

    def __init__(self, connect: Callable[[], asyncio.Protocol], *, latency_seconds: float = 0.0) -> None:
        self.reads, self.ended = True, False
        self._latency, self._loop = latency_seconds, asyncio.get_running_loop()
        self._got, self._news = bytearray(), asyncio.Event()
        self._transport = InProcessTransport(self)
        self._transport.protocol = protocol = connect()
        protocol.connection_made(self._transport)

    def later(self, call: Callable[[], None]) -> None:
        if self._latency:
            self._loop.call_later(self._latency, call)
        else:
            self._loop.call_soon(call)

    def send(self, data: bytes) -> None:
        self.later(lambda: self._transport.arrive(data))

    async def read(self) -> bytes:
        """The bytes that have come since the last call, at least one; empty at the end of the connection."""
        self.read_on()
        while not self._got and not self.ended:
            self._news.clear()
            await self._news.wait()
        got, self._got = bytes(self._got), bytearray()
        return got

    def stop_reading(self) -> None:
        self.reads = False

    def read_on(self) -> None:
        if not self.reads:
            self.reads = True
            self._transport.deliver()

    def close(self) -> None:
        """Hang up: what has not been read by now is lost."""
        self.ended = True
        self._news.set()
        self.later(self._transport.leave)

    # ---- what the server's end calls

    def take(self, data: bytes) -> None:
        self._got += data
        self._news.set()

    def end(self) -> None:
        self._transport.deliver()
        self.ended = True
        self._news.set()
