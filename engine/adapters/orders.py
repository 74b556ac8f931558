"""Carries out a gateway's orders about adapters at a worker: read, assign, abandon, unload.

What is read has no name until the gateway assigns it. When the gateway's session ends before that, it is abandoned."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from engine.adapters.held import AdapterLease, AdapterRefused, HeldAdapters
from mesh.messages.adapters import (
    AbandonAdapter,
    AdapterRead,
    Adapters,
    AssignAdapter,
    NamedAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from mesh.messages.message import AdapterOrder, Up
from mesh.sessions.session import Session

log = logging.getLogger("baton.adapters")

MOST_READS = 64  # reads of one worker that are not assigned yet


class AdapterOrders:
    """The `AdapterBook` of a worker that computes adapters."""

    def __init__(self, held: HeldAdapters) -> None:
        self._held = held
        self._read = dict[tuple[Session, int], tuple[NamedAdapter, AdapterLease]]()
        self._reading = dict[tuple[Session, int], asyncio.Task[None]]()
        self._send_all: Callable[[Up], None] = lambda message: None

    def named(self) -> tuple[NamedAdapter, ...]:
        return self._held.named()

    def tell(self, send_all: Callable[[Up], None]) -> None:
        self._send_all = send_all

    def order(self, gateway: Session, order: AdapterOrder) -> None:
        match order:
            case ReadAdapter():
                self._begin(gateway, order)
            case AssignAdapter(number):
                if (found := self._read.pop((gateway, number), None)) is not None:
                    self._assign(*found)
            case AbandonAdapter(number):
                self._abandon(gateway, number)
            case UnloadAdapter(name):
                self._held.remove(name)
                log.info("adapter %r is unloaded", name)
                self._tell()

    def gateway_ended(self, gateway: Session) -> None:
        for owner, number in [*self._read, *self._reading]:
            if owner is gateway:
                self._abandon(gateway, number)

    def _begin(self, gateway: Session, order: ReadAdapter) -> None:
        if len(self._read) + len(self._reading) >= MOST_READS:
            gateway.send(AdapterRead(order.number, "", f"{MOST_READS} adapters are being loaded already"))
            return
        key = gateway, order.number
        self._reading[key] = asyncio.get_running_loop().create_task(self._load(gateway, order))

    async def _load(self, gateway: Session, order: ReadAdapter) -> None:
        key = gateway, order.number
        try:
            named, lease = await self._held.load(order.name, Path(order.folder))
        except AdapterRefused as error:
            gateway.send(AdapterRead(order.number, "", str(error)))
            return
        finally:
            del self._reading[key]
        self._read[key] = named, lease
        gateway.send(AdapterRead(order.number, named.digest, ""))

    def _assign(self, named: NamedAdapter, lease: AdapterLease) -> None:
        try:
            self._held.assign(named)
            log.info("adapter %r is loaded: %s from %s", named.name, named.digest[:16], named.folder)
        except AdapterRefused as error:
            log.error("%s", error)
        lease.close()
        self._tell()

    def _abandon(self, gateway: Session, number: int) -> None:
        if (task := self._reading.get((gateway, number))) is not None:
            task.cancel()
        if (found := self._read.pop((gateway, number), None)) is not None:
            found[1].close()

    def _tell(self) -> None:
        self._send_all(Adapters(self._held.named()))
