"""The judge accepts OVERLOADED and UNAVAILABLE only where the simulated world has what they say."""

from dataclasses import replace

import pytest

from gateway.attaching.service import Gateway
from gateway.process.leaving import ClientPorts, drain
from gateway.routing.router import Local
from gateway.sequencing.admission_control import AdmissionControl
from gateway.sequencing.requests import StartLimit
from mesh.messages.jobs import Sampling
from tests.sim.seeds import judge
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

# A prompt takes more than ten seconds.
WORLD = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, local=Local.ALWAYS, step_seconds=4.0)
DEMAND = Demand(0.0, tuple(range(40)), Sampling(max_tokens=5), 0)
QUICK = replace(WORLD, step_seconds=0.3)


def other(at: float, first: int) -> Demand:
    """A request with a prompt that no cache has."""
    return replace(DEMAND, at=at, prompt=tuple(range(first, first + 40)))


def run(*faults: SimFault, world: SimWorld = WORLD, demands: tuple[Demand, ...] = (DEMAND,)) -> RunOutcome:
    return run_story(Story(world, demands, faults, 60.0))


@pytest.mark.parametrize("deadline", [None, 55.0])
def test_a_request_may_be_refused_for_the_queue_that_workers_report(
    deadline: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    demands = DEMAND, other(40.0, 1), other(40.5, 2), replace(other(41.0, 3), deadline_seconds=deadline)
    outcome = run(demands=demands)
    assert not outcome.violations and outcome.reached["OVERLOADED"]
    monkeypatch.setattr(judge, "something_waits", lambda *arguments: False)
    assert "no other request is there" in run(demands=demands).violations[0]


@pytest.mark.parametrize("deadline", [None, 50.0])
def test_a_request_may_not_be_refused_for_a_queue_that_no_worker_reports(
    deadline: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while a worker computes: by its reports the wait is another one."""
    monkeypatch.setattr(AdmissionControl, "wait_seconds", lambda *arguments, **named: 49.0)
    demands = DEMAND, replace(other(1.0, 1), deadline_seconds=deadline)
    assert "by the reports" in run(demands=demands).violations[0]


def test_a_gateway_may_believe_in_the_requests_of_a_worker_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second request is sent to a stopped worker, and its client leaves; only the worker could say so."""
    short = replace(DEMAND, sampling=Sampling(max_tokens=1))
    demands = short, other(50.0, 1), other(52.0, 2)
    faults = SimFault(49.5, "freeze", "decode0", seconds=4.0), SimFault(51.0, "cancel")
    outcome = run(*faults, demands=demands)
    assert not outcome.violations and outcome.reached["OVERLOADED"]
    monkeypatch.setattr(judge, "_unheard", lambda *arguments: False)
    assert "no other request" in run(*faults, demands=demands).violations[0]


def test_a_worker_may_not_give_a_request_back_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, demands = replace(WORLD, max_batch=1), (DEMAND, other(0.5, 1))
    assert not run(world=world, demands=demands).violations
    monkeypatch.setattr(AdmissionControl, "start_limit", lambda *arguments: StartLimit(3.0, of_queue=True))
    assert "and it may wait for 20.00 s" in run(world=world, demands=demands).violations[0]


def test_a_request_may_wait_in_vain_only_while_no_worker_could_be_used() -> None:
    """The only decode worker is away for a while; without another try nobody asks it when it is back."""
    away = SimFault(1.0, "kill", "decode0", seconds=50.0)
    outcome = run(away, world=QUICK, demands=(replace(DEMAND, at=2.0),))
    assert not outcome.violations and outcome.reached["UNAVAILABLE"]
    back = replace(away, seconds=3.0)
    assert not run(back, world=QUICK, demands=(replace(DEMAND, at=2.0),)).reached["UNAVAILABLE"]
    with removed("retries"):
        found = run(back, world=QUICK, demands=(replace(DEMAND, at=2.0),)).violations
    assert "decode0 has room" in found[0]


def test_only_a_gateway_that_was_asked_to_leave_may_refuse_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = SimFault(1.0, "drain gateway", "gateway0", seconds=9.0)
    demands = replace(DEMAND, sampling=Sampling(max_tokens=60)), replace(DEMAND, at=3.0)
    world = replace(QUICK, gateways=2)
    outcome = run(leaves, world=world, demands=demands)
    assert not outcome.violations and outcome.reached["a request continues after a gateway has drained"]

    async def at_once(gateway: Gateway, seconds: float, ports: ClientPorts) -> None:
        await drain(gateway, 0.0, ports)

    with monkeypatch.context() as patch:
        patch.setattr("tests.sim.seeds.departures.drain", at_once)
        assert "its gateway has time left" in run(leaves, world=world, demands=demands).violations[0]
    accept = Gateway._accept
    monkeypatch.setattr(Gateway, "_accept", lambda gateway, choice: [gateway.drain(), accept(gateway, choice)][1])
    assert "nobody has asked the gateway to leave" in run(world=QUICK).violations[0]
