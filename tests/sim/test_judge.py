"""The judge of the simulated meshes accepts an error only if the run has what causes it."""

from dataclasses import replace
from math import inf

import pytest

from gateway.routing.router import Local
from gateway.sequencing.deaths import Deaths
from mesh.messages.jobs import Sampling
from tests.sim.seeds import judge
from tests.sim.seeds.deaths import DeathsOfWorkers
from tests.sim.seeds.fleet import Fleet
from tests.sim.seeds.guards import PageGuard
from tests.sim.seeds.processes import WorkerProcess
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

# A prompt takes more than ten seconds, so a worker that dies has computed no token of it.
WORLD = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, local=Local.ALWAYS, step_seconds=4.0)
DEMAND = Demand(0.0, tuple(range(40)), Sampling(max_tokens=5), 0)
TIMES = (1.0, 8.0, 15.0)


def killed(kind: str, target: str = "decode0", times: tuple[float, ...] = TIMES) -> tuple[SimFault, ...]:
    return tuple(SimFault(at, kind, target, seconds=0.2) for at in times)


def run(*faults: SimFault, world: SimWorld = WORLD, demands: tuple[Demand, ...] = (DEMAND,)) -> RunOutcome:
    return run_story(Story(world, demands, faults, 60.0))


def blame(patch: pytest.MonkeyPatch) -> None:
    """From now on every end of a session counts as a death, whatever died beside it."""
    ended = Deaths.ended

    def died(deaths: Deaths, worker: object) -> None:
        worker.session.ended_there, worker.draining = True, False  # type: ignore[attr-defined]
        ended(deaths, worker)  # type: ignore[arg-type]

    patch.setattr(Deaths, "ended", died)
    patch.setattr(Deaths, "_counts", lambda *arguments: True)


@pytest.mark.parametrize("kind", ["kill", "replace"])
def test_a_request_may_end_with_its_third_worker_and_not_with_its_second(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = killed(kind)
    third, second = run(*faults), run(*faults[:2])
    assert not third.violations and third.reached["WORKERS_DIED"] == 1
    assert not second.violations and second.errors == 0
    monkeypatch.setattr(Deaths, "_guilty", lambda deaths, request: len(request.deaths) >= 2)
    assert "2 workers died alone" in run(*faults[:2]).violations[0]


def test_a_worker_that_ends_its_session_after_a_lease_is_the_third_for_that_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = *killed("kill")[:2], SimFault(15.0, "deafen", "decode0", "gateway0", seconds=20.0)
    outcome = run(*faults)
    assert not outcome.violations and outcome.reached["WORKERS_DIED"] == 1
    assert run(*faults[1:]).reached["WORKERS_DIED"] == 0
    monkeypatch.setattr(DeathsOfWorkers, "look", lambda deaths, process: None)
    assert "2 workers died alone" in run(*faults).violations[0]


def test_a_worker_may_die_before_a_gateway_attaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registration is on the way when it dies the third time: the gateway gives it the request and then hears."""
    world = replace(WORLD, seed=5, latency_seconds=0.1)
    faults = killed("kill", times=(*TIMES[:2], 8.34))
    outcome = run(*faults, world=world)
    assert not outcome.violations and outcome.reached["WORKERS_DIED"] == 1
    add = DeathsOfWorkers.add

    def strangers_forgotten(deaths: DeathsOfWorkers, process: WorkerProcess) -> None:
        add(deaths, process)
        deaths._unattached.clear()

    monkeypatch.setattr(DeathsOfWorkers, "add", strangers_forgotten)
    assert "2 workers died alone" in run(*faults, world=world).violations[0]


@pytest.mark.parametrize("kind", ["drain", "together"])
def test_a_request_may_not_end_for_workers_that_leave_or_die_beside_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = killed("drain") if kind == "drain" else killed("kill") + killed("kill", "prefill0")
    assert not run(*faults).violations
    blame(monkeypatch)
    assert "0 workers died alone" in run(*faults).violations[0]


def test_a_death_that_a_gateway_notices_just_after_it_stood_still_excuses_the_next_one() -> None:
    """It blames no request for the first, and counts it as one that came beside the second, though not long before."""
    frozen = SimFault(11.0, "freeze gateway", "gateway0", seconds=4.0)
    deaths = *killed("kill")[:2], frozen, *killed("kill", "prefill0", (15.3,)), *killed("kill", times=(16.1,))
    beside = run(*deaths)
    assert not beside.violations and beside.reached["WORKERS_DIED"] == 0
    later = run(*deaths[:-1], *killed("kill", times=(16.5,)))
    assert not later.violations and later.reached["WORKERS_DIED"] == 1


def test_of_two_requests_that_wait_at_a_worker_only_the_older_may_be_suspected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They belong to another gateway than the request that the worker computes."""
    younger = tuple(replace(DEMAND, at=at, gateway=1) for at in (0.2, 0.4))
    world = replace(WORLD, gateways=2, max_batch=1)
    outcome = run(*killed("kill"), world=world, demands=(DEMAND, *younger))
    assert not outcome.violations and outcome.reached["WORKERS_DIED"] == 2
    monkeypatch.setattr(
        "gateway.sequencing.deaths.suspects", lambda needing, worker, **more: {each.id for each in needing}
    )
    assert "died alone" in run(*killed("kill"), world=world, demands=(DEMAND, *younger)).violations[0]


def test_a_worker_that_hung_may_give_back_what_it_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request waits for the only place in the batch; the judge is made blind for the first one, once."""
    world, demands = replace(WORLD, max_batch=1), (DEMAND, replace(DEMAND, at=0.5))
    hang = SimFault(1.0, "hang", "decode0", seconds=25.0)
    busy, blind = judge._busy, [True]
    monkeypatch.setattr(judge, "_busy", lambda fleet: busy(fleet) if not blind else not blind.pop())
    outcome = run(hang, world=world, demands=demands)
    assert not outcome.violations and outcome.reached["OVERLOADED"] and not blind
    blind.append(True)
    monkeypatch.setattr(Fleet, "troubled", lambda fleet, name, began: False)
    assert "no other request" in run(hang, world=world, demands=demands).violations[0]


def test_a_request_may_wait_for_ever_only_for_pages_that_no_worker_can_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prefill worker that may not be killed stays frozen while it writes ten of 24 pages."""
    world = replace(WORLD, prefills=2, local=Local.NEVER, may_kill=False, pages=24, step_seconds=0.2, write_seconds=2.0)
    freeze = SimFault(0.0, "freeze", "prefill0", seconds=inf, phase="pushing")
    large = replace(DEMAND, at=10.0, prompt=tuple(range(60)))
    for demand, waits in ((large, True), (replace(DEMAND, at=10.0), False)):
        outcome = run(freeze, world=world, demands=(DEMAND, demand))
        assert not outcome.violations and bool(outcome.reached["UNAVAILABLE"]) is waits
    assert not run(freeze, world=replace(world, may_kill=True), demands=(DEMAND, large)).errors
    monkeypatch.setattr(PageGuard, "beyond_reach", lambda guard, owner: False)
    assert "r1 never ends" in run(freeze, world=world, demands=(DEMAND, large)).violations[0]


def test_an_answer_may_lose_its_class_for_the_moment_in_which_its_worker_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The streams between the gateway and the only worker of the class break while the request has some tokens."""
    world = replace(WORLD, decodes=2, classes=("class-a", "class-b"), step_seconds=0.3)
    demand = replace(DEMAND, sampling=Sampling(max_tokens=60))
    faults = tuple(SimFault(8.0, "snap", name, "gateway0") for name in ("decode0", "decode1"))
    outcomes = [run(fault, world=world, demands=(demand,)) for fault in faults]
    assert not any(each.violations for each in outcomes)
    assert sum(each.reached["CLASS_UNAVAILABLE"] for each in outcomes) == 1
    monkeypatch.setattr("tests.sim.seeds.judge.REGISTERS_SECONDS", 0.0)
    assert sum("can serve its class" in str(run(fault, world=world, demands=(demand,))) for fault in faults) == 1


def test_a_worker_that_nobody_wakes_is_noticed_before_another_timer_wakes_it() -> None:
    """Three requests need more than one pool of 24 pages: decode answers Later, and prefill asks again by a timer."""
    world = replace(WORLD, local=Local.NEVER, pages=24, step_seconds=0.3)
    prompts = (tuple(range(first, first + 40)) for first in range(3))
    demands = tuple(replace(DEMAND, prompt=prompt, sampling=Sampling(max_tokens=30)) for prompt in prompts)
    outcome = run(world=world, demands=demands)
    assert not outcome.violations and outcome.reached["Later"] > 3
    with removed("pauses"):
        assert "no Ready for a prompt" in run(world=world, demands=demands).violations[0]
