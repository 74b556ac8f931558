"""Copies of workers' processes: a machine was started from the snapshot of another one, so two processes have the same
incarnation. A gateway must not take the copy while it has the process that was the first to show it.

A copy is the product's own part that registers and answers gateways; it never computes. It leaves as on SIGTERM."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.workers.attached import AttachedWorker
from mesh.messages.reports import Load
from mesh.sessions.attach import Attachments
from tests.sim.seeds.nodes import SimNode
from tests.sim.seeds.processes import GatewayProcess, WorkerProcess

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

GOODBYE_SECONDS = 1.0  # between Drain and the end of a copy


@dataclass(frozen=True)
class Copy:
    of: WorkerProcess
    name: str
    seconds: float  # for which it lives


class ProcessCopies:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet, self._living, self._made = fleet, list[Copy](), 0
        self._seen: dict[tuple[SimNode, int], AttachedWorker] = {}  # by gateway and incarnation

    def of(self, process: WorkerProcess) -> list[Copy]:
        return [copy for copy in self._living if copy.of is process]

    async def live(self, process: WorkerProcess, seconds: float) -> None:
        """A copy of this process starts, registers and leaves after a while."""
        if self.of(process):
            return
        self._made += 1
        fleet, copy = self._fleet, Copy(process, f"{process.name} copy {self._made}", seconds)
        self._living.append(copy)
        node = SimNode(copy.name)
        fleet.loop.nodes.append(node)
        attachments = await node.spawn(self._start(copy))
        registers = node.spawn(attachments.register())
        await asyncio.sleep(seconds)
        node.run(attachments.drain)
        await asyncio.sleep(GOODBYE_SECONDS)
        registers.cancel()
        await node.spawn(attachments.aclose())
        self._living.remove(copy)

    async def _start(self, copy: Copy) -> Attachments:
        fleet, worker = self._fleet, copy.of.worker
        attachments = Attachments(
            fleet.network.host(copy.name),
            gateways=fleet.options.gateways,
            rules=fleet.options.rules,
            hello=worker.attachments._hello,
            load=Load,
            cached=tuple,
            on_message=lambda session, message: None,
            on_end=lambda session: None,
            pages=worker.ledger,
        )
        await attachments.listen(copy.name)
        return attachments

    def look(self, gateway: GatewayProcess) -> None:
        """After each event of a gateway."""
        for copy in self._living:
            key, now = (gateway.node, copy.of.incarnation), gateway.core.workers.get(copy.of.incarnation)
            first = self._seen.get(key)
            if now is not None and now is not first:
                if now.hello.address == copy.name:
                    self._fleet.coverage.reach("a copy of a process is attached")
                    self._fleet.trouble(copy.of.name, "copy", copy.seconds)
                    if first is not None and not first.session.ended and first.hello.address != copy.name:
                        self._fleet.violate(f"{gateway.name} takes a copy of {copy.of.name}, which is attached")
                self._seen[key] = now
