"""Processes that leave are judged: gone within their grace, nothing new, no stream lost; at one port another stays."""

from dataclasses import replace

import pytest

from gateway.process.leaving import OwnPorts
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from mesh.sessions import serving
from prefill_svc.worker import PrefillWorker
from tests.sim.seeds.ports import PortOfAll
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

WORLD = SimWorld(seed=1, prefills=2, decodes=2, gateways=2, local=Local.NEVER, step_seconds=0.1)
LONG = Demand(0.0, tuple(range(20)), Sampling(max_tokens=60), 0)
HANDED_OVER = "a gateway hands its port to another process"


def run(*faults: SimFault, world: SimWorld = WORLD, demands: tuple[Demand, ...] = (LONG,)) -> RunOutcome:
    return run_story(Story(world, demands, faults, 30.0))


def drains(name: str, seconds: float, at: float = 2.0) -> SimFault:
    kind = "drain gateway" if name.startswith("gateway") else "drain"
    return SimFault(at, kind, name, seconds=seconds)


@pytest.mark.parametrize("name", ["decode0", "decode1"])
def test_a_worker_hands_over_what_would_not_end_within_its_grace(name: str) -> None:
    """Each decode worker has one of two long answers."""
    demands = replace(LONG, at=8.0), replace(LONG, at=8.0, prompt=tuple(range(1, 21)))
    outcome = run(drains(name, 3.0, at=10.0), demands=demands)
    assert not outcome.violations and not outcome.errors
    assert outcome.reached["a process leaves within its grace"] == 1
    with removed("handing over"):
        found = [run(drains(each, 3.0, at=10.0), demands=demands).violations for each in ("decode0", "decode1")]
    assert any(each and "though another worker was there" in each[0] for each in found)


def test_a_worker_that_leaves_gets_nothing_new() -> None:
    """An answer keeps both prefill workers there until the second request comes."""
    demands = LONG, *(replace(LONG, at=5.0 + each, prompt=tuple(range(each, each + 20))) for each in range(1, 5))
    slow = replace(WORLD, prefills=1, decodes=1, local=Local.ALWAYS)
    assert not run(drains("decode0", 12.0), world=slow, demands=demands).violations
    with removed("drains"):
        found = run(drains("decode0", 12.0), world=slow, demands=demands).violations
    assert "orders something new of decode0" in found[0]


@pytest.mark.parametrize("name", ["decode0", "prefill0"])
def test_a_worker_is_gone_within_its_grace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(WORLD, prefills=1, decodes=1, step_seconds=1.0)
    assert not run(drains(name, 2.0), world=world).violations
    drain = serving.drain

    async def in_its_own_time(worker: PrefillWorker, leave: object, seconds: float) -> None:
        await drain(worker, leave, 3 * seconds)  # type: ignore[arg-type]

    monkeypatch.setattr(serving, "drain", in_its_own_time)
    found = [run(drains(each, 2.0), world=world).violations for each in ("decode0", "prefill0")]
    assert any(each and "after it was asked to leave within 2.0 s" in each[0] for each in found)


def test_a_gateway_that_leaves_tells_each_client_how_to_go_on() -> None:
    outcome = run(drains("gateway0", 2.0))
    assert not outcome.violations and outcome.reached["a request continues after a gateway has drained"]
    with removed("end of a drain"):
        assert "clients lose their streams" in run(drains("gateway0", 2.0)).violations[0]


def test_a_gateway_that_leaves_a_port_hands_it_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come on connections that the process which leaves has accepted just before."""
    world = replace(WORLD, gateways=3, one_port=True, latency_seconds=0.1)
    short = replace(LONG, sampling=Sampling(max_tokens=2))
    demands = LONG, *(replace(short, at=6.5 + each / 50, prompt=tuple(range(each, each + 9))) for each in range(100))
    leaving = drains("gateway0", 15.0, at=7.0), drains("gateway1", 15.0, at=7.5)
    outcome = run(*leaving, world=world, demands=demands)
    assert not outcome.violations and not outcome.reached["UNAVAILABLE"] and outcome.reached[HANDED_OVER] >= 2
    with removed("one port"):
        assert "takes its new connections" in run(*leaving, world=world, demands=demands).violations[0]
    monkeypatch.setattr(PortOfAll, "ports", lambda port, process: OwnPorts())
    assert "takes its new connections" in run(*leaving, world=world, demands=demands).violations[0]


def test_the_last_gateway_of_a_port_may_refuse() -> None:
    world, leaving = replace(WORLD, one_port=True), (drains("gateway0", 15.0), drains("gateway1", 15.0, at=2.5))
    both_busy = [replace(LONG, prompt=tuple(range(each, each + 9))) for each in range(6)]
    outcome = run(*leaving, world=world, demands=(*both_busy, replace(LONG, at=5.0)))
    assert not outcome.violations and outcome.reached["UNAVAILABLE"]
