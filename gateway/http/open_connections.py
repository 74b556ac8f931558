"""All connections of one HTTP server: how many there are, which of them wait for a request, and who gives way.

A server that leaves serves on what it has: the answer to each further request ends its connection, and connections on
which no request comes end by themselves when the time for that is over."""

from dataclasses import dataclass, field
from typing import Protocol

from gateway.http.writing import JoinedWrites
from mesh.config.door_config import DoorConfig


class Droppable(Protocol):
    def drop(self) -> None:
        """End the connection at once, to make room for another one."""


@dataclass(slots=True)
class OpenConnections:
    limits: DoorConfig
    count: int = 0
    without_request: dict[Droppable, None] = field(default_factory=dict)  # the oldest first
    writes: JoinedWrites = field(default_factory=JoinedWrites)
    leaving: bool = False  # every further answer is the last one of its connection

    def make_room(self) -> bool:
        """Whether a new connection has room; one that waits for a request may have to go for it."""
        if self.count < self.limits.connections:
            return True
        oldest = next(iter(self.without_request), None)
        if oldest is not None:
            oldest.drop()
        return oldest is not None

    @property
    def all_idle(self) -> bool:
        """Whether no connection has a request."""
        return self.count <= len(self.without_request)
