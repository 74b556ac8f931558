"""A worker's adapters as its sessions with gateways see them: names for Hello, and orders of gateways.

`engine/adapters/orders.py` is the book of a worker that computes adapters."""

from collections.abc import Callable
from typing import Protocol

from mesh.messages.adapters import AdapterRead, NamedAdapter, ReadAdapter
from mesh.messages.message import AdapterOrder, Up
from mesh.sessions.session import Session


class AdapterBook(Protocol):
    def named(self) -> tuple[NamedAdapter, ...]:
        """The names of this moment."""

    def order(self, gateway: Session, order: AdapterOrder) -> None:
        """A gateway wants an adapter loaded or unloaded."""

    def gateway_ended(self, gateway: Session) -> None:
        """Loads that this gateway began are abandoned."""

    def tell(self, send_all: Callable[[Up], None]) -> None:
        """From now on every gateway learns of changes by `send_all`."""


class NoAdapters:
    """The book of a worker that computes none."""

    def named(self) -> tuple[NamedAdapter, ...]:
        return ()

    def order(self, gateway: Session, order: AdapterOrder) -> None:
        if isinstance(order, ReadAdapter):
            gateway.send(AdapterRead(order.number, "", "this worker computes no adapters: they need device = cpu"))

    def gateway_ended(self, gateway: Session) -> None:
        pass

    def tell(self, send_all: Callable[[Up], None]) -> None:
        pass


NO_ADAPTERS = NoAdapters()
