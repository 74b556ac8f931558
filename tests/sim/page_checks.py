"""Checks the pages of a simulated cluster: every write while it runs, and every pool at its end."""

from collections.abc import Mapping

from decode_svc.request.requests import PageOwner
from engine.pool.pages import PagePool
from kvtransfer.memory import Write
from mesh.messages.jobs import Ticket
from tests.sim.processes import SimProcess


class PageChecks:
    def __init__(self, processes: Mapping[str, SimProcess]) -> None:
        self.strays: list[str] = []  # writes to pages of others
        self._processes = processes

    def touched(self, write: Write, page: int) -> None:
        """A write, however late, may only change a page that lands, or is quarantined, for its own ticket."""
        process = next((p for p in self._processes.values() if p.pool is write.target.pool), None)
        if process is not None and process.alive:
            owner, state = process.worker.pages.owner(page), process.worker.pages.state(page).value
            if not isinstance(owner, PageOwner) or owner.ticket.pack() != write.ticket:
                ticket = Ticket.unpack(write.ticket)
                self.strays.append(f"a late write of {ticket} hits page {page}, {state} for {owner}")

    def computed(self, name: str, pages: PagePool, page: int) -> None:
        """No step may ever write a page that another request reads or can find."""
        if not pages.writable(page):
            self.strays.append(f"{name} computes in page {page}, which is shared")

    def out(self) -> list[SimProcess]:
        """Living processes whose pages are not all back."""
        return [process for process in self._processes.values() if process.alive and pages_out(process)]

    def at_the_end(self) -> list[str]:
        """Looks when every client has ended, for tasks that died, pools that are not whole and pages still out."""
        found = list[str]()
        for process in self._processes.values():
            for task in process.tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    found.append(f"{process.name}: a task died of {task.exception()!r}")
            counts = process.worker.pages.counts()
            if counts.total != process.worker.pages.pages:
                found.append(f"{process.name}: {counts} is not the whole pool")
        return found + [f"{p.name}: pages never come back: {p.worker.pages.counts()}" for p in self.out()]


def pages_out(process: SimProcess) -> int:
    counts = process.worker.pages.counts()
    return counts.in_use + counts.landing + counts.quarantined
