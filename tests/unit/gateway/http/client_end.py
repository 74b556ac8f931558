"""A connection of the HTTP server without a socket: what its client gets, and how it ends."""

import asyncio
from typing import Any

from gateway.http.connection import ClientConnection
from gateway.http.open_connections import OpenConnections
from mesh.config.door_config import DoorConfig


class ClientEnd(asyncio.Transport):
    """The client's end: it keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.got, self.ended, self.closed = b"", False, False

    def write(self, data: Any) -> None:
        assert not self.ended
        self.got += bytes(data)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def connected(app: Any, **limits: Any) -> tuple[ClientConnection, ClientEnd]:
    made = ClientConnection(app, OpenConnections(DoorConfig(**limits)))
    pipe = ClientEnd()
    made.connection_made(pipe)
    return made, pipe


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
