"""A leg's phases follow each other without a gap, and finished legs travel together."""

import asyncio
import json
from typing import Any

from mesh.messages.jobs import Job, Sampling, Ticket
from mesh.messages.reports import Phases
from mesh.sessions.legs import UNRECORDED, Outbox, StepSampler
from mesh.timing.loop_monitor import LoopMonitor
from tests.sim.loop import virtual

SAMPLED, UNSAMPLED = (f"00-{1:032x}-{2:016x}-{flags}" for flags in ("01", "00"))


class GatewaySession:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def job(traceparent: str = SAMPLED, request: int = 1) -> Job:
    return Job(Ticket(request, 1, bytes(16)), (1,), (), Sampling(), traceparent=traceparent)


@virtual
async def test_phases_follow_each_other_and_others_lie_beside_them() -> None:
    gateway: Any = GatewaySession()
    leg = Outbox(LoopMonitor()).recorder(gateway, job(), 1.0)
    assert leg.enter("queue", 1.0) and not leg.enter("queue", 1.5)
    leg.enter("compute", 2.0)
    leg.event("chunk", 2.5, {"tokens": 4})
    leg.note({"cached": 0})
    leg.beside("kv.send", 2.25, 3.5, {"bytes": 9})
    leg.leave(3.0)
    leg.end(4.0)
    leg.end(5.0)
    await asyncio.sleep(0)
    (report,) = gateway.sent
    (reported,) = report.legs
    assert (reported.ticket, reported.start_seconds, reported.end_seconds) == (job().ticket, 1.0, 4.0)
    phases = [(phase.name, phase.start_seconds, phase.end_seconds) for phase in reported.phases]
    assert phases == [("queue", 1.0, 2.0), ("kv.send", 2.25, 3.5), ("compute", 2.0, 3.0)]
    compute = reported.phases[2]
    assert json.loads(compute.attributes) == {"cached": 0}
    assert [(event.name, event.seconds) for event in compute.events] == [("chunk", 2.5)]


@virtual
async def test_legs_that_end_together_travel_in_one_message_to_each_gateway() -> None:
    one, other, outbox = GatewaySession(), GatewaySession(), Outbox(LoopMonitor())
    for gateway, request in ((one, 1), (one, 2), (other, 3)):
        outbox.recorder(gateway, job(request=request), 0.0).end(1.0)  # type: ignore[arg-type]
    assert one.sent == []
    await asyncio.sleep(0)
    assert [len(message.legs) for message in one.sent] == [2] and len(other.sent) == 1


@virtual
async def test_a_job_that_is_not_sampled_is_not_recorded() -> None:
    gateway: Any = GatewaySession()
    outbox = Outbox(LoopMonitor())
    for traceparent in ("", UNSAMPLED, "nonsense"):
        leg = outbox.recorder(gateway, job(traceparent), 0.0)
        assert leg is UNRECORDED and not leg.recording
        leg.enter("queue", 0.0)
        leg.end(1.0)
    await asyncio.sleep(0)
    assert gateway.sent == []


@virtual
async def test_one_of_so_many_steps_is_recorded_with_links_to_its_requests() -> None:
    gateway: Any = GatewaySession()
    outbox = Outbox(LoopMonitor())
    sampler = StepSampler(outbox, 3)
    assert [sampler.due() for _ in range(6)] == [False, False, True, False, False, True]
    assert not any(StepSampler(outbox, 0).due() for _ in range(6))
    sampler.record(1.0, 2.0, [(gateway, job("")), (gateway, job())], step=3, rows=5)
    sampler.record(1.0, 2.0, [(gateway, job(""))], step=6, rows=5)
    await asyncio.sleep(0)
    (report,) = gateway.sent
    assert isinstance(report, Phases)
    (step,) = report.steps
    assert step.links == (SAMPLED,) and json.loads(step.attributes)["baton.step"] == 3
