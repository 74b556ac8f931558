"""Which workers died, what they computed then, and which gateways could notice it: by this the judge knows whether a
request may have ended its workers.

A worker dies for others when its process is killed, or replaced at its address while it is stopped. It dies for one
gateway when that one leaves it because its step hangs; when it hears nothing of that gateway for a lease and ends their
session; and when their stream breaks and the worker does not attach there again. What it has sent before its end may
attach it at a gateway afterwards. A draining worker does not die for a gateway, which learns late or never of one that
it cannot hear: docs/protocol.md, "Request at the gateway"."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from tests.sim.seeds.orders import held
from tests.sim.seeds.processes import GatewayProcess, WorkerProcess

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet


KNOWN_LATE_SECONDS = 0.5  # so long after a worker has left a request a gateway may not know it yet


@dataclass(frozen=True, slots=True)
class DeathOfWorker:
    seconds: float
    noticed_by: set[str]  # names of gateways
    noticed_late: set[str]  # gateways that hear of it when a cut is mended, if their lease lasts so long
    suspects: set[int]  # requests that it computed just now, or whose turn was next at it, as far as gateways know


class DeathsOfWorkers:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._all = list[DeathOfWorker]()
        self._broken = list[tuple[DeathOfWorker, WorkerProcess, GatewayProcess]]()  # its stream is; it may come back
        self._unnoticed = list[tuple[DeathOfWorker, WorkerProcess, GatewayProcess]]()  # the notice is on its way
        self._hung = set[tuple[str, int]]()  # gateways, and workers that they have left because their steps hang
        self._unattached = list[tuple[DeathOfWorker, WorkerProcess, GatewayProcess]]()  # the gateway had no such worker

    def add(self, process: WorkerProcess) -> None:
        """The process dies now, or is replaced."""
        gateways = self._fleet.gateways.values()
        death = self._add(process, [each for each in gateways if self._notices(each, process)])
        strange = [each for each in gateways if each.alive and each.core.workers.get(process.incarnation) is None]
        self._unattached += [(death, process, each) for each in strange]

    def look(self, process: WorkerProcess) -> None:
        """After each of its events: has it ended a session with a gateway, because it has heard nothing for a lease?"""
        for session in process.worker.attachments.sessions:
            if session.expired and session not in process.expired:
                process.expired.append(session)
                gateways = self._fleet.gateways.values()
                self._add(process, [each for each in gateways if each.name == session.stream.peer and each.alive])

    def broken(self, one: str, other: str) -> None:
        """The stream between these two breaks."""
        process, gateway = self._fleet.workers.get(one), self._fleet.gateways.get(other)
        if process is not None and gateway is not None and self._notices(gateway, process):
            self._broken.append((self._death(process, [gateway]), process, gateway))

    def _add(self, process: WorkerProcess, noticing: list[GatewayProcess]) -> DeathOfWorker:
        self._all.append(death := self._death(process, noticing))
        for gateway in noticing:
            if not any(_known(request, process) for request in gateway.core.sequencer.requests.values()):
                self._unnoticed.append((death, process, gateway))
                self.wait(gateway)
        return death

    def _death(self, process: WorkerProcess, noticing: list[GatewayProcess]) -> DeathOfWorker:
        computed = process.computed_lately(KNOWN_LATE_SECONDS)
        suspects = set(computed)
        for gateway in noticing:
            requests = gateway.core.sequencer.requests.values()
            suspects |= {request.id for request in requests if request.begun == process.incarnation}
            suspects |= _next(gateway, process, computed, self._fleet.options.rules.priority_seconds)
        death = DeathOfWorker(self._fleet.loop.world, set(), set(), suspects)
        for gateway in noticing:
            self._will_notice(gateway, death, process)
        return death

    def _will_notice(self, gateway: GatewayProcess, death: DeathOfWorker, process: WorkerProcess) -> None:
        late = (process.name, gateway.name) in self._fleet.network.cuts
        (death.noticed_late if late else death.noticed_by).add(gateway.name)

    def wait(self, gateway: GatewayProcess) -> None:
        """After each event of a gateway: it has to suspect also what it has sent to a dead worker and what never got
        there, as long as it does not know of the death. The oldest of these requests is the first one."""
        workers, now = gateway.core.workers, self._fleet.loop.world
        self._look_for_hung(gateway)
        back = [each for each in self._broken if each[2] is gateway and workers.get(each[1].incarnation) is not None]
        for each in back:
            if now - each[0].seconds > self._fleet.world.latency_seconds * 2:  # the break has come to this gateway
                self._broken.remove(each)
        for each in [each for each in self._unattached if each[2] is gateway and self._notices(gateway, each[1])]:
            self._unattached.remove(each)
            self._unnoticed.append(each)
            self._will_notice(gateway, *each[:2])
        for each in [each for each in self._unnoticed if each[2] is gateway]:
            death, process, _ = each
            if gateway.core.workers.get(process.incarnation) is None:
                self._unnoticed.remove(each)
                continue
            sent = [r for r in gateway.core.sequencer.requests.values() if r.phase is RequestPhase.OPEN]
            sent = [r for r in sent if _needs(r, process) and r.prefill in (None, process.incarnation)]
            priority_seconds = self._fleet.options.rules.priority_seconds
            death.suspects.update(r.id for r in sorted(sent, key=lambda r: r.seniority(priority_seconds))[:1])

    def _look_for_hung(self, gateway: GatewayProcess) -> None:
        hung = {(gateway.name, each.incarnation) for each in gateway.core.workers if each.hung}
        for _, incarnation in hung - self._hung:
            process = next((each for each in self._fleet.workers.values() if each.incarnation == incarnation), None)
            if process is not None:
                suspects = process.computed_lately(KNOWN_LATE_SECONDS) | {each.request for each in held(process)}
                self._all.append(DeathOfWorker(self._fleet.loop.world, {gateway.name}, set(), suspects))
        self._hung = hung | {each for each in self._hung if each[0] != gateway.name}

    def _notices(self, gateway: GatewayProcess, process: WorkerProcess) -> bool:
        if not gateway.alive:
            return False
        worker = gateway.core.workers.get(process.incarnation)
        return worker is not None and not worker.draining

    def of(self, request: int, gateway: str) -> tuple[int, int]:
        """How many workers died under this request, as its gateway could notice: without those beside which other
        workers died that had nothing to do with it; and all."""
        world, rules = self._fleet.world, self._fleet.options.rules
        known = [*self._all, *(death for death, _, _ in self._broken)]
        mine = [each for each in known if request in each.suspects]
        own = [each for each in mine if gateway in each.noticed_by]
        late = [each for each in mine if gateway in each.noticed_late]
        others = [each for each in self._all if request not in each.suspects and gateway in each.noticed_by]
        # Two notices can be so much further apart than the deaths, by the gateway's clock.
        seconds = rules.together_seconds * (1 - world.drift) - world.latency_seconds
        alone = [each for each in own if all(abs(each.seconds - other.seconds) >= seconds for other in others)]
        return len(alone) + len(late), len(own) + len(late)


def _next(gateway: GatewayProcess, process: WorkerProcess, computed: set[int], priority_seconds: float) -> set[int]:
    """The request that the gateway has to suspect if it knows of none that the worker computes: the oldest that waits
    there for its first step. The notice of that step may have died with the worker, and no notice tells that a request
    lands. Those of which it knows may end before it hears of the death."""
    waiting = [each for each in gateway.core.sequencer.requests.values() if each.id not in computed]
    waiting = [each for each in waiting if each.phase is RequestPhase.OPEN and _needs(each, process)]
    waiting = [each for each in waiting if each.prefill in (None, process.incarnation)]
    return {each.id for each in sorted(waiting, key=lambda each: each.seniority(priority_seconds))[:1]}


def _known(request: GatewayRequest, process: WorkerProcess) -> bool:
    """Does the gateway know that the worker computes it?"""
    mine = process.incarnation
    return request.begun == mine or (request.handed and request.decode == mine)


def _needs(request: GatewayRequest, process: WorkerProcess) -> bool:
    """Prefill is not needed once decode has the pages."""
    mine = process.incarnation
    return request.decode == mine or (request.prefill == mine and not request.handed)
