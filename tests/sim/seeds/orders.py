"""What gateways order at workers: some orders are odd, and what a gateway has cancelled must be gone.

An odd order is one that no worker can compute, as it comes from a gateway with a defect. The worker refuses it, and the
attempt before it stays there until Cancel comes: Cancel names the refused attempt and concerns all lower ones."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from decode_svc.worker import DecodeWorker
from mesh.messages.job_check import MOST_PRIORITY
from mesh.messages.jobs import Reason, Ticket
from mesh.messages.message import Message
from mesh.messages.orders import Cancel, Open, Prefill
from mesh.messages.reports import Lost
from mesh.sessions.session import Session
from prefill_svc.prompts import PromptPhase

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import WorkerProcess


class GatewayOrders:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self.odd_left = 0  # so many of the next orders that replace an attempt are odd
        self.given_back = set[tuple[str, int]]()  # gateway and request: a worker has not begun it in time
        self.odd_requests = set[int]()  # those whose order was odd: they end with an error

    def rewrite(self, source: str, message: Message) -> Message:
        """The order that a gateway sends in place of this message."""
        if not self.odd_left or not isinstance(message, Open | Prefill):
            return message
        ticket = message.job.ticket
        tier = "decode" if isinstance(message, Open) else "prefill"
        request = self._fleet.gateways[source].core.sequencer.requests.get(ticket.request)
        worker = next(
            (w for w in self._fleet.workers.values() if request and w.incarnation == getattr(request, tier)), None
        )
        if worker is None or not any(each.request == ticket.request for each in held(worker)):
            return message
        self.odd_left -= 1
        self.odd_requests.add(ticket.request)
        for stage in worker.stages(ticket.request):
            self._fleet.coverage.hit("odd job", stage)
        self._fleet.coverage.reach("a worker refuses the next attempt and holds the one before")
        return replace(message, job=replace(message.job, priority=MOST_PRIORITY + 1))

    def note(self, gateway: str, message: Message | None) -> None:
        """A message arrives at a gateway."""
        if isinstance(message, Lost) and message.reason is Reason.LATE:
            self.given_back.add((gateway, message.ticket.request))

    def watch(self, process: "WorkerProcess") -> None:
        """From now on a look follows each Cancel at this worker: it has no attempt any more that Cancel concerns."""
        attachments = process.worker.attachments
        receive = attachments._receive

        def watched(session: Session, message: Message) -> None:
            receive(session, message)
            if isinstance(message, Cancel):
                for ticket in held(process):
                    if ticket.request == message.request and ticket.attempt <= message.attempt:
                        what = f"attempt {ticket.attempt} of {ticket.request}, though {message.attempt} is cancelled"
                        self._fleet.violate(f"{process.name} keeps {what}")

        attachments._receive = watched  # type: ignore[method-assign]


def held(process: "WorkerProcess") -> Iterator[Ticket]:
    """The tickets of the requests that the worker has, without those that wait only for their last write."""
    worker = process.worker
    if isinstance(worker, DecodeWorker):
        yield from [request.ticket for request in worker.requests.values()]
    else:
        yield from [prompt.ticket for prompt in worker.prompts if prompt.phase is not PromptPhase.STOPPING]
