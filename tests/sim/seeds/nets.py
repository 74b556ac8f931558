"""Judges the nets: moves of the product that heal whatever went wrong, also what another protection should have
prevented. Clients lose seconds by each of them, and pages are kept in vain, so each needs a reason in the world.

* A request that lies still without any worker being the cause begins anew: it waited for room at decode, as far as its
  gateway can know.
* A worker is left as hung, or a landing as one without progress: something happened to its process or its ways.
* Prefill lets go of pages at the latest when their request ends: it should at Landed, or when the session ends.
* Decode repeats its Landing to a second Ready: prefill asks once in a session."""

from typing import TYPE_CHECKING

from decode_svc.request.requests import DecodePhase
from decode_svc.worker import DecodeWorker
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Reason
from mesh.messages.kv_messages import Ready
from mesh.messages.message import Message
from mesh.messages.reports import Lost
from prefill_svc.prompts import PromptPhase
from prefill_svc.worker import PrefillWorker
from tests.sim.seeds.judge import WAITING
from tests.sim.seeds.wires import WriteFault

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import FleetProcess, GatewayProcess, WorkerProcess

SUFFERS_SECONDS = 20.0  # so long after a fault a landing may still suffer from it: a slow step goes on
KEPT_SECONDS = 1.5  # for which prefill may hold pages that no message will ask for any more
ROOM_SECONDS = 1.5  # so long after others have left decode, a request that waited for them may have no landing yet


class Nets:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._late_seconds = 0.0  # until then some write may be late
        self._held: dict[tuple[str, int], float] = {}  # worker and request: since when prefill holds pages in vain

    def watch(self, process: "GatewayProcess") -> None:
        """From now on the nets of this gateway are judged."""
        deaths = process.core.sequencer.deaths
        stalled, hung = deaths.stalled, deaths.hung

        def judged_stalled(request: GatewayRequest) -> None:
            if not self._waits_for_room(request):
                self._fleet.violate(f"{process.name}: request {request.id} lay still until it began anew")
            stalled(request)

        def judged_hung(worker: AttachedWorker) -> None:
            if not self._may_be_silent(process, worker):
                self._fleet.violate(f"{process.name}: {worker.name} is left as hung, and nothing happened to it")
            hung(worker)

        deaths.stalled, deaths.hung = judged_stalled, judged_hung  # type: ignore[method-assign]

    def spoiled(self, fault: WriteFault) -> None:
        """A write meets this fault."""
        if fault.kind == "late":
            self._late_seconds = max(self._late_seconds, self._fleet.loop.world + fault.seconds)

    def note(self, source: str, target: str, message: Message | None) -> None:
        """A message arrives."""
        if isinstance(message, Lost) and message.reason is Reason.NO_PROGRESS:
            self._judge_landing(source, target, message)
        elif isinstance(message, Ready) and (process := self._fleet.workers.get(target)) is not None:
            if not process.runs:
                return  # the end of the session before, which came first, is not handled yet
            worker = process.worker
            request = worker.requests.get(message.ticket.request) if isinstance(worker, DecodeWorker) else None
            writer = self._fleet.workers[source].incarnation
            if request is not None and request.landing is not None and request.holds(message.ticket):
                if not request.lands_from_another(writer):
                    self._fleet.violate(f"{source} sends Ready for {message.ticket.request} twice in a session")

    def look(self) -> None:
        """Once in a while: prompts that prefill holds though decode runs their requests, or their session is over."""
        held, now = dict[tuple[str, int], float](), self._fleet.loop.world
        for process in self._fleet.workers.values():
            for key, decode in self._held_in_vain(process):
                since = held[process.name, key] = self._held.get((process.name, key), now)
                if now - since > KEPT_SECONDS and (decode is None or self._in_touch(process, decode, KEPT_SECONDS)):
                    whose = "whose session is over" if decode is None else f"which {decode.name} has long run"
                    self._fleet.violate(f"{process.name} holds the pages of {key}, {whose}")
        self._held = held

    # ----

    def _waits_for_room(self, request: GatewayRequest) -> bool:
        """Both workers have the request, and decode has others, too, or had them until a moment ago. The request may
        have its landing already, if Begun has not told the gateway of it."""
        processes = {each.incarnation: each for each in self._fleet.workers.values()}
        prefill, decode = processes.get(request.prefill or 0), processes.get(request.decode or 0)
        if prefill is None or decode is None or request.ticket is None or request.begun is not None:
            return False
        sender, taker = prefill.worker, decode.worker
        if not isinstance(sender, PrefillWorker) or not isinstance(taker, DecodeWorker):
            return False
        there, prompt = taker.requests.get(request.id), sender.prompts.find(request.ticket)
        if there is None or prompt is None or not there.holds(request.ticket):
            return False
        others = len(taker.requests) > 1 or decode.computed_lately(ROOM_SECONDS) - {request.id}
        waits = there.phase is DecodePhase.OPEN and prompt.phase in WAITING
        return bool(others) and (waits or there.phase is DecodePhase.LANDING)

    def _held_in_vain(self, process: "WorkerProcess") -> "list[tuple[int, WorkerProcess | None]]":
        """The requests, each with the worker that runs it; None: the session with that one is over."""
        worker, found = process.worker, list[tuple[int, "WorkerProcess | None"]]()
        if not process.runs or not isinstance(worker, PrefillWorker):
            return found
        for prompt in worker.prompts:
            if prompt.phase not in (PromptPhase.HELD, PromptPhase.ASKED):
                continue
            link, decode = worker.links.get(prompt.decode_address), self._fleet.workers.get(prompt.decode_address)
            if link is None or not link.up:
                found.append((prompt.ticket.request, None))
                continue
            if decode is None or not isinstance(decode.worker, DecodeWorker):
                continue
            request = decode.worker.requests.get(prompt.ticket.request)
            if request is not None and request.phase is DecodePhase.RUNNING and request.holds(prompt.ticket):
                found.append((prompt.ticket.request, decode))
        return found

    def _judge_landing(self, decode: str, gateway: str, lost: Lost) -> None:
        """A landing is given up without progress: it needs a late write, or trouble at one of its ends."""
        request = self._fleet.gateways[gateway].core.sequencer.requests.get(lost.ticket.request)
        if request is None or request.ticket != lost.ticket or request.prefill is None:
            return
        rules, now = self._fleet.options.rules, self._fleet.loop.world
        seconds = 2 * rules.progress_seconds + SUFFERS_SECONDS
        ends = [each for each in self._fleet.workers.values() if each.name == decode]
        ends += [each for each in self._fleet.workers.values() if each.incarnation == request.prefill]
        if len(ends) == 2 and self._late_seconds < now - seconds and self._in_touch(*ends, seconds):
            self._fleet.violate(f"{decode} gives a landing from {ends[1].name} up, and nothing happened to either")

    def _may_be_silent(self, gateway: "GatewayProcess", worker: AttachedWorker) -> bool:
        process = next((p for p in self._fleet.workers.values() if p.incarnation == worker.incarnation), None)
        if process is None or self._fleet.copies.of(process):
            return True
        patience = max(self._fleet.options.rules.silent_seconds, worker.step_limit_seconds)
        return not self._in_touch(gateway, process, patience)

    def _in_touch(self, one: "FleetProcess", other: "FleetProcess", seconds: float) -> bool:
        """Whether both ran well and messages passed between them, as far as faults go, in the last seconds."""
        fleet, names = self._fleet, {one.name, other.name}
        since = fleet.loop.world - seconds
        if any(not each.runs or each.began > since for each in (one, other)):
            return False
        if any(names.issuperset(way) for way in fleet.network.cuts):
            return False
        snapped = any(at >= since and {a, b} == names for at, a, b in fleet.snaps)
        return not snapped and not any(each.name in names and each.ended >= since for each in fleet.troubles)
