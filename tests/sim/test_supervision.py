"""Processes that stand still as a whole, and steps that never end: a supervisor ends them, or the mesh works around."""

from dataclasses import replace
from math import inf

import pytest

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

WORLD = SimWorld(seed=1, prefills=2, decodes=2, gateways=2, local=Local.NEVER, supervised=True)
DEMANDS = tuple(Demand(each / 2, tuple(range(each, each + 20)), Sampling(max_tokens=60), each % 2) for each in range(8))


def run(fault: SimFault, world: SimWorld = WORLD) -> RunOutcome:
    return run_story(Story(world, DEMANDS, (fault,), 90.0))


@pytest.mark.parametrize("name", ["prefill0", "decode0", "gateway0"])
def test_a_process_that_stands_still_is_replaced_and_no_client_notices(name: str) -> None:
    fault = SimFault(3.0, "stand still gateway" if name == "gateway0" else "stand still", name)
    outcome = run(fault)
    assert not outcome.violations and not outcome.errors
    assert outcome.reached["a process that stands still is ended"] == 1
    with removed("standing still"):
        assert f"{name} stands still for 10." in run(fault).violations[0]


@pytest.mark.parametrize("name", ["prefill0", "decode0"])
def test_a_worker_whose_step_never_ends_is_replaced(name: str) -> None:
    fault = SimFault(3.0, "hang", name, seconds=inf, phase="pushing" if name == "prefill0" else "running")
    outcome = run(fault)
    assert not outcome.violations and not outcome.errors
    assert outcome.reached["a worker whose step hangs ends itself"] == 1
    with removed("watchdog"):
        assert f"{name} computes one step for " in run(fault).violations[0]


@pytest.mark.parametrize("name", ["prefill1", "decode1"])
def test_without_a_supervisor_the_other_workers_do_the_work(name: str) -> None:
    world = replace(WORLD, supervised=False)
    fault = SimFault(0.5, "hang", name, seconds=inf, phase="pushing" if name == "prefill1" else "running")
    outcome = run(fault, world)
    assert not outcome.violations and not outcome.errors
    assert not outcome.reached["a worker whose step hangs ends itself"]
    if name == "decode1":  # decode gives up the landings of a prefill worker that hangs
        with removed("hung workers"):
            assert "never ends" in run(fault, world).violations[0]
