"""Which workers each gateway could use, and for how long: what the world shows, whatever the gateway believes.

A worker is usable for a gateway while both processes run, neither leaves, messages pass both ways, its steps end in the
usual time and no copy of it is about. After ATTACHES_SECONDS of that the gateway must have it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.seeds.nodes import SimNode

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import GatewayProcess, WorkerProcess

ATTACHES_SECONDS = 5.0  # a worker registers once a heartbeat, and dials to a gateway that is cut off hold it up
KEPT_SECONDS = 60.0  # for which the past is known

Pair = tuple[SimNode, SimNode]  # a gateway and a worker


@dataclass(frozen=True, slots=True)
class Stretch:
    began: float
    ended: float


class Reach:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet, self._snaps = fleet, 0
        self._since: dict[Pair, float] = {}  # pairs that are usable now
        self._past: dict[Pair, list[Stretch]] = {}
        self._quarantines: dict[SimNode, list[tuple[float, int]]] = {}  # pages there, at each look

    def look(self) -> None:
        """Once in a while: who is usable for whom now?"""
        now, fleet = self._fleet.loop.world, self._fleet
        snapped = {(one, other) for _, one, other in fleet.snaps[self._snaps :]}
        self._snaps = len(fleet.snaps)
        for worker in fleet.workers.values():
            known = [each for each in self._quarantines.get(worker.node, []) if now - each[0] < KEPT_SECONDS]
            self._quarantines[worker.node] = [*known, (now, worker.pages.counts().quarantined)]
        for gateway in fleet.gateways.values():
            for worker in fleet.workers.values():
                pair = gateway.node, worker.node
                if not self._usable(gateway, worker) or (worker.name, gateway.name) in snapped:
                    if (since := self._since.pop(pair, None)) is not None:
                        past = [each for each in self._past.get(pair, []) if now - each.ended < KEPT_SECONDS]
                        self._past[pair] = [*past, Stretch(since, now)]
                else:
                    self._since.setdefault(pair, now)

    def longest(self, gateway: "GatewayProcess", workers: "list[WorkerProcess]", seconds: float) -> float:
        """The longest time for which all these workers were usable together for the gateway, in the last seconds."""
        now = self._fleet.loop.world
        common = [Stretch(now - seconds, now)]
        for worker in workers:
            pair = gateway.node, worker.node
            mine = [*self._past.get(pair, []), Stretch(self._since.get(pair, now), now)]
            both = [Stretch(max(a.began, b.began), min(a.ended, b.ended)) for a in common for b in mine]
            common = [each for each in both if each.ended > each.began]
        return max((each.ended - each.began for each in common), default=0.0)

    def heard(self, gateway: "GatewayProcess", worker: "WorkerProcess", seconds: float) -> bool:
        """Whether both ran and messages passed between them, as far as faults go, in the last seconds."""
        since = self._fleet.loop.world - seconds
        names = worker.name, gateway.name
        ran = gateway.runs and not any(each.still_seconds(since, self._fleet.loop.world) for each in (gateway, worker))
        snapped = any(at >= since and {one, other} == set(names) for at, one, other in self._fleet.snaps)
        late = [each for each in self._fleet.troubles if each.name in names and each.ended >= since]
        cut = any(each.kind in ("cut", "deafen") for each in late)
        return ran and gateway.began < since and not snapped and not cut

    def quarantined(self, worker: "WorkerProcess", seconds: float) -> int:
        """The most pages that were in quarantine there at one time, in the last seconds."""
        since = self._fleet.loop.world - seconds
        return max((pages for at, pages in self._quarantines.get(worker.node, []) if at >= since), default=0)

    def _usable(self, gateway: "GatewayProcess", worker: "WorkerProcess") -> bool:
        ways = (worker.name, gateway.name), (gateway.name, worker.name)
        if not (gateway.runs and worker.runs) or gateway.core.draining or worker.replaced:
            return False
        if any(way in self._fleet.network.cuts for way in ways) or worker.worker.attachments._draining:
            return False
        seen = gateway.core.workers.get(worker.incarnation)
        hung = seen is not None and seen.hung and self._fleet.troubled(worker.name, self._fleet.loop.world)
        slow = worker.runner.hangs is not None or worker.runner.slowness > 1.0
        return not (hung or slow or self._fleet.copies.of(worker))
