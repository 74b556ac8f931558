"""The workers that stand still, as far as this gateway can see: nothing has come from them for several heartbeats.

`GET /health`, the metrics and the page name them. While such a worker is attached its lease runs; when the lease has
ended its session, the worker stays on this list until it is back, as the same process or as a new one in its place, or
for KEPT_SECONDS. The list changes no route: the lease decides when requests go on elsewhere
(gateway/sequencing/deaths.py)."""

import asyncio
from dataclasses import dataclass, replace

from gateway.core.interface import SilentFacts
from gateway.routing.registry import Workers
from gateway.sequencing.startup_wait import Settling
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier
from mesh.rules import Rules

SILENT_HEARTBEATS = 3.0  # without any message, after which a worker counts as silent
KEPT_SECONDS = 600.0  # a worker that has been away for longer has been taken down, or has come back by another name
MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class SilentWorker:
    incarnation: int
    name: str
    tier: Tier
    address: str
    since_seconds: float  # when the last message of it came, on the loop's clock
    attached: bool  # False: the lease has ended its session

    @classmethod
    def of(cls, worker: AttachedWorker) -> "SilentWorker":
        hello, heard = worker.hello, worker.session.heard_seconds
        return cls(hello.incarnation, worker.name, hello.tier, hello.address, heard, True)

    def facts(self, now: float) -> SilentFacts:
        return SilentFacts(
            self.name, self.tier.value, self.address, round(max(0.0, now - self.since_seconds), 1), self.attached
        )


class SilentWorkers:
    def __init__(self, workers: Workers, settling: Settling, rules: Rules) -> None:
        self._workers = workers
        self._settling = settling
        self._rules = rules
        self._lost: dict[int, SilentWorker] = {}  # whose session the lease has ended, by incarnation

    def lost(self, worker: AttachedWorker) -> None:
        """The lease has ended the session with this worker, which was silent."""
        while len(self._lost) >= MOST_KEPT:
            del self._lost[next(iter(self._lost))]
        self._lost[worker.incarnation] = replace(SilentWorker.of(worker), attached=False)

    def returned(self, worker: AttachedWorker) -> None:
        """This worker is attached again, or it takes the place of one that fell silent."""
        for incarnation in [i for i, each in self._lost.items() if takes_place(worker, each)]:
            del self._lost[incarnation]

    def now(self) -> list[SilentWorker]:
        """Workers that are silent, the longest silent first; none where this gateway itself has just stood still."""
        if self._settling.stopped:
            return []
        now, least = asyncio.get_running_loop().time(), self._rules.heartbeat_seconds * SILENT_HEARTBEATS
        self._lost = {i: each for i, each in self._lost.items() if now - each.since_seconds <= KEPT_SECONDS}
        attached = [SilentWorker.of(each) for each in self._workers if now - each.session.heard_seconds > least]
        return sorted([*self._lost.values(), *attached], key=lambda each: each.since_seconds)

    def facts(self) -> tuple[SilentFacts, ...]:
        now = asyncio.get_running_loop().time()
        return tuple(each.facts(now) for each in self.now())


def takes_place(worker: AttachedWorker, before: SilentWorker) -> bool:
    """The same process, or one at its address, or one that was given the same name. Workers of several hosts may all
    have the name of their tier, which then says nothing."""
    if worker.incarnation == before.incarnation:
        return True
    named = worker.hello.name not in ("", worker.tier.value) and worker.hello.name == before.name
    return worker.tier is before.tier and (worker.hello.address == before.address or named)
