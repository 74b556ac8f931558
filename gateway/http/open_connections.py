"""All connections of one HTTP server: how many there are, which of them wait for a request, and who gives way.

A server that leaves serves on what it has: the answer to each further request ends its connection, and connections on
which no request comes end by themselves when the time for that is over."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.http.writing import JoinedWrites
from mesh.config.door_config import DoorConfig


class ServedConnection(Protocol):
    def drop(self) -> None:
        """End the connection at once, to make room for another one."""

    def shut(self) -> None:
        """End it behind the answer that is under way."""


@dataclass(slots=True)
class OpenConnections:
    limits: DoorConfig
    every: set[ServedConnection] = field(default_factory=set)
    without_request: dict[ServedConnection, None] = field(default_factory=dict)  # the oldest first
    writes: JoinedWrites = field(default_factory=JoinedWrites)
    leaving: bool = False  # every further answer is the last one of its connection
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)  # tasks that serve requests

    @property
    def count(self) -> int:
        return len(self.every)

    def enter(self, connection: ServedConnection) -> None:
        self.every.add(connection)

    def leave(self, connection: ServedConnection) -> None:
        self.every.discard(connection)

    def make_room(self) -> bool:
        """Whether a new connection has room; one that waits for a request may have to go for it."""
        if self.count < self.limits.connections:
            return True
        oldest = next(iter(self.without_request), None)
        if oldest is not None:
            oldest.drop()
        return oldest is not None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    @property
    def all_idle(self) -> bool:
        """Whether no connection has a request."""
        return self.count <= len(self.without_request)
