"""Measures the longest time for which an event loop serves nothing, while a request runs against it.

A timer ticks every millisecond; two ticks far apart mean that something held the loop, or Python's lock in another
thread. A block counts only as far as this process computed meanwhile, so a neighbour that takes the processor does not
make a block. Requests come from a thread that writes ready bytes to a socket, which holds no lock."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

TICK_SECONDS = 0.001
MOST_SECONDS = 0.050  # the longest block that a request may cause
RECEIVE_SECONDS = 30.0


@dataclass(slots=True)
class BlockWatch:
    longest_seconds: float = 0.0
    _wall: float = 0.0
    _computed: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._wall, self._computed = time.perf_counter(), time.process_time()
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._look()

    def _tick(self) -> None:
        self._look()
        self.start()

    def _look(self) -> None:
        wall, computed = time.perf_counter() - self._wall, time.process_time() - self._computed
        self.longest_seconds = max(self.longest_seconds, min(wall, computed) - TICK_SECONDS)


@asynccontextmanager
async def watching() -> AsyncIterator[BlockWatch]:
    """The watch of the running loop; read it after the block."""
    watch = BlockWatch()
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def http(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """A whole request whose connection ends with its answer."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    if body or method == "POST":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def exchange(address: str, data: bytes) -> bytes:
    """Send these bytes over a new connection; everything that comes back until it ends."""
    return await asyncio.to_thread(talk, address, lambda connection: connection.sendall(data))


def talk(address: str, say: Callable[[socket.socket], None]) -> bytes:
    host, _, port = address.rpartition(":")
    received = bytearray()
    with socket.create_connection((host.strip("[]"), int(port)), timeout=RECEIVE_SECONDS) as connection:
        try:
            say(connection)
        except OSError:  # refused before everything was sent: the answer says why
            pass
        try:
            while data := connection.recv(65_536):
                received += data
        except ConnectionResetError:
            pass
    return bytes(received)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0
