"""Processes leave, as after SIGTERM. Each is judged: it is gone within its grace, no stream of a client is lost, and it
takes nothing new once it has said so."""

import asyncio
from typing import TYPE_CHECKING

from gateway.process.leaving import drain
from gateway.sequencing.requests import RequestPhase
from mesh.messages.jobs import Tier
from mesh.messages.message import Drain, Message
from mesh.messages.orders import Open, Prefill
from mesh.sessions import serving
from tests.sim.seeds.nodes import SimNode
from tests.sim.seeds.orders import held
from tests.sim.seeds.processes import FleetProcess, GatewayProcess, WorkerProcess
from tests.sim.seeds.reach import ATTACHES_SECONDS

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

POLL_SECONDS = 0.25
RESTART_SECONDS = 0.3
CLOSES_SECONDS = 1.0  # so long after its grace a process may still be there
KNOWN_SECONDS = 1.0  # so long after Drain came to a gateway it orders nothing new of the worker
STILL_SECONDS = 1.0  # a process that stood still in this time before it ends has told nobody anything
TELLING_SECONDS = 1.0  # a shorter grace leaves a gateway no time to hand requests over
HANDS_OVER_SHARE = 0.5  # share of its grace in which another worker must have been there the whole time


class Departures:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._told: dict[tuple[SimNode, int], float] = {}  # gateway and worker: when Drain came

    async def leave(self, process: FleetProcess, seconds: float) -> None:
        """The process takes no new requests, waits for the others and ends."""
        if process.leaving:
            return  # another fault of this moment has asked it before
        fleet, began, process.leaving = self._fleet, self._fleet.loop.world, True
        if isinstance(process, WorkerProcess):
            ending = process.node.spawn(self._end_worker(process, seconds))
        else:
            assert isinstance(process, GatewayProcess)
            process.leaves_at = process.node.clock(began) + seconds
            ending = process.node.spawn(drain(process.core, seconds, fleet.port.ports(process)))
        while process.alive and not ending.done():
            await asyncio.sleep(POLL_SECONDS)
            self._judge_time(process, began, seconds)
        if ending.done():
            ending.result()
        await asyncio.sleep(RESTART_SECONDS)  # what it has sent arrives
        if process.alive:
            if isinstance(process, GatewayProcess):
                self._judge_streams(process)
            fleet.coverage.reach("a process leaves within its grace")
            fleet.kill(process, died=False)
            if not process.replaced:
                await fleet.restart(process.name, RESTART_SECONDS)

    async def _end_worker(self, process: WorkerProcess, seconds: float) -> None:
        asked = asyncio.Event()
        asked.set()
        await serving.drain(process.worker, asked, seconds)
        if process.tier is Tier.DECODE and seconds >= TELLING_SECONDS:
            self._judge_rest(process, seconds)
        await process.worker.aclose()

    # ---- the judge

    def _judge_time(self, process: FleetProcess, began: float, seconds: float) -> None:
        fleet = self._fleet
        took = fleet.loop.world - began
        allowed = seconds * (1 + 2 * fleet.world.drift) + CLOSES_SECONDS + POLL_SECONDS
        if process.alive and took > allowed + process.still_seconds(began, fleet.loop.world):
            fleet.violate(f"{process.name} is there {took:.1f} s after it was asked to leave within {seconds:.1f} s")

    def _judge_streams(self, process: GatewayProcess) -> None:
        """Clients that read have their end, or an error that says how to go on; not of a process that stood still."""
        now = self._fleet.loop.world
        if process.still_seconds(now - STILL_SECONDS, now):
            return
        if lost := [each for each in process.calls if each.served]:
            self._fleet.violate(f"{process.name} leaves in good order, and {len(lost)} clients lose their streams")

    def _judge_rest(self, process: WorkerProcess, seconds: float) -> None:
        """At the end of its grace the worker has no request that another one could have taken the whole time."""
        fleet, span = self._fleet, HANDS_OVER_SHARE * seconds
        for gateway in fleet.gateways.values():
            known = fleet.loop.world - self._told.get((gateway.node, process.incarnation), fleet.loop.world)
            if known < span or not fleet.reach.heard(gateway, process, span):
                continue
            for ticket in held(process):
                request = gateway.core.sequencer.requests.get(ticket.request) if gateway.runs else None
                if request is None or request.ticket != ticket or request.phase is not RequestPhase.OPEN:
                    continue
                if request.choice.examination is None and self._another(gateway, process, span):
                    what = f"keeps request {ticket.request} at the end of its grace of {seconds:.1f} s"
                    fleet.violate(f"{process.name} {what}, though another worker was there")

    def _another(self, gateway: GatewayProcess, process: WorkerProcess, span: float) -> bool:
        ways = self._fleet.ways(lambda each: each is not process and each.numerics == process.numerics)
        whole = span + ATTACHES_SECONDS
        return any(self._fleet.reach.longest(gateway, way, whole) >= whole - POLL_SECONDS for way in ways)

    # ---- what is told and ordered

    def note(self, source: str, target: str, message: Message | None) -> None:
        """A message arrives. A gateway whose session with the worker is over does not hear it."""
        process, gateway = self._fleet.workers.get(source), self._fleet.gateways.get(target)
        if not isinstance(message, Drain) or process is None or gateway is None or not gateway.runs:
            return
        if not process.worker.attachments._draining:
            return  # it comes from the process that had this name before
        if gateway.core.workers.get(process.incarnation) is not None:
            self._told.setdefault((gateway.node, process.incarnation), self._fleet.loop.world)

    def ordered(self, source: str, message: Message) -> None:
        """A gateway sends an order."""
        if not self._told or not isinstance(message, Open | Prefill):
            return
        gateway, request = self._fleet.gateways[source], message.job.ticket.request
        at = gateway.core.sequencer.requests.get(request)
        incarnation = getattr(at, "decode" if isinstance(message, Open) else "prefill", 0)
        told, now = self._told.get((gateway.node, incarnation)), self._fleet.loop.world
        if told is None or now - told < KNOWN_SECONDS + gateway.still_seconds(told, now):
            return
        worker = next((each for each in self._fleet.workers.values() if each.incarnation == incarnation), None)
        seen = gateway.core.workers.get(incarnation)
        if worker is None or seen is None or seen.hello.address != worker.name:
            return  # the gateway has a copy of the process
        if not any(each.request == request for each in held(worker)):
            self._fleet.violate(f"{source} orders something new of {worker.name}, {now - told:.1f} s after its Drain")
