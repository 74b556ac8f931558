"""Watches the memory of all workers: which page a write or a step may change, and whom decode may kill for it."""

from collections.abc import Hashable
from contextvars import Context
from typing import TYPE_CHECKING

from decode_svc.request.requests import PageOwner
from kvtransfer.memory import Write
from mesh.messages.jobs import Ticket
from tests.sim.seeds.processes import WorkerProcess

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

RESTART_SECONDS = 0.2


class PageGuard:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    def _process(self, incarnation: int) -> WorkerProcess | None:
        workers = (each for each in self._fleet.all if isinstance(each, WorkerProcess))
        return next((each for each in workers if each.incarnation == incarnation), None)

    def killed_by_decode(self, incarnation: int) -> bool:
        """Decode may kill a writer that is silent itself while pages wait for its proof, and no other one."""
        fleet, process = self._fleet, self._process(incarnation)
        if process is None or not fleet.world.may_kill:
            fleet.coverage.reach("kill from quarantine is not permitted")
            return False
        fleet.coverage.reach("kill from quarantine")
        if not self._silent(process):
            fleet.violate(f"{process.name} is killed from quarantine, though it was not silent")
        fleet.loop.call_soon(self._end, process, context=Context())
        return True

    def _silent(self, process: WorkerProcess) -> bool:
        """Whether others have not heard of this process for a lease."""
        since = self._fleet.loop.world - self._fleet.options.rules.lease_seconds
        kinds = ("freeze", "replace", "cut", "deafen", "snap")
        near = [t for t in self._fleet.troubles if t.name == process.name and t.kind in kinds and t.ended >= since]
        return process.node.frozen or process.replaced or bool(near)

    def _end(self, process: WorkerProcess) -> None:
        if process.alive:
            self._fleet.kill(process)
            if not process.replaced:
                self._fleet.trouble(process.name, "killed from quarantine", RESTART_SECONDS)
                self._fleet.later(self._fleet.restart(process.name, RESTART_SECONDS))

    def touched(self, write: Write, page: int) -> None:
        """A write, however late, may only change a page that lands, or is quarantined, for its own ticket."""
        fleet = self._fleet
        process = next((w for w in fleet.workers.values() if w.pool is write.target.pool), None)
        if process is None or not process.alive:
            return
        owner = process.pages.owner(page)
        if not isinstance(owner, PageOwner) or owner.ticket.pack() != write.ticket:
            state, ticket = process.pages.state(page).value, Ticket.unpack(write.ticket)
            fleet.violate(f"{process.name}: a late write of {ticket.request} hits page {page}, {state} for {owner}")
        writer = self._process(write.writer)
        if writer is not None and writer.replaced:
            fleet.coverage.reach("a replaced process writes")
        if process.pages.state(page).value == "quarantined":
            fleet.coverage.reach("a write reaches a quarantined page")
        fleet.tenants.written(process.name, write)

    def computed(self, process: WorkerProcess, page: int) -> None:
        """No step may ever write a page that another request reads or can find."""
        if process.pages.shared(page):
            self._fleet.violate(f"{process.name} computes in page {page}, which is shared")

    def beyond_reach(self, owner: Hashable) -> bool:
        """Whether the writer of these pages may write them for ever: its step hangs, or it stays frozen or cut off and
        may not be killed."""
        if not isinstance(owner, PageOwner):
            return False
        writer = self._process(owner.writer)
        assert writer is not None, "every writer is a process of the run"
        if writer.hangs_for_ever:
            return writer.alive
        silent = writer.stands_still or any(writer.name in way for way in self._fleet.lasting_cuts)
        return writer.alive and silent and not self._fleet.world.may_kill
