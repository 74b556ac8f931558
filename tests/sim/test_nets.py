"""The judge of the nets: a protection is missed though a net heals what follows, and a net needs a reason."""

from dataclasses import replace

import pytest

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import run_story
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

WORLD = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, local=Local.NEVER)
DEMAND = Demand(1.0, tuple(range(20)), Sampling(max_tokens=5), 0)


@pytest.mark.parametrize(
    ("name", "seed", "what"),
    [
        ("first", 6, "is left as hung, and nothing happened to it"),
        ("early", 0, "lay still until it began anew"),
        ("one_ready", 0, "twice in a session"),
        ("Landed", 0, "has long run"),
        ("held at a session's end", 64, "whose session is over"),
        ("repair", 0, "gives a landing from prefill0 up, and nothing happened to either"),
    ],
)
def test_a_protection_is_missed_though_a_net_heals_what_follows(name: str, seed: int, what: str) -> None:
    """`python -m tests.sim --remove NAME` finds the seed."""
    with removed(name) as rules:
        violations = run_story(draw(seed), rules=rules).violations
    assert what in violations[0]
    assert not any("never ends" in each for each in violations), "the first violation ends the run"


@pytest.mark.parametrize("seed", (0, 6, 64))
def test_these_seeds_need_no_net_without_a_reason(seed: int) -> None:
    assert run_story(draw(seed)).violations == []


def test_a_late_write_is_a_reason_to_give_a_landing_up() -> None:
    story = Story(WORLD, (DEMAND,), (SimFault(0.5, "late", seconds=25.0, pick=1),), 30.0)
    outcome = run_story(story)
    assert outcome.violations == [] and outcome.reached["a landing lacks progress"] == 1


def test_a_damaged_span_is_none() -> None:
    """It is asked for again. The processes have run for a while, so their start is no reason either."""
    story = Story(WORLD, (replace(DEMAND, at=61.0),), (SimFault(60.5, "flip", pick=1),), 80.0)
    outcome = run_story(story)
    assert outcome.violations == [] and not outcome.reached["a landing lacks progress"]
    with removed("repair") as rules:
        assert "nothing happened to either" in run_story(story, rules=rules).violations[0]


@pytest.mark.parametrize(
    ("latency_seconds", "step_seconds", "tokens"),
    [
        (0.1, 0.5, 59),  # the request that had the room is gone from decode, and the next Ready is on its way
        (0.3, 0.3, 97),  # Landing is on its way
    ],
)
def test_room_that_has_just_come_is_a_reason_to_begin_anew(
    latency_seconds: float, step_seconds: float, tokens: int
) -> None:
    """The gateway does not know of it. A snap brings the second attempt, since a first one would come back as late."""
    world = replace(WORLD, max_batch=1, latency_seconds=latency_seconds, step_seconds=step_seconds)
    running, waiting = replace(DEMAND, sampling=Sampling(max_tokens=tokens)), replace(DEMAND, at=3.0)
    second_attempt = SimFault(5.0, "snap", "prefill0", "gateway0")
    assert run_story(Story(world, (running, waiting), (second_attempt,), 30.0)).violations == []


def test_a_hung_step_is_a_reason_to_leave_a_worker() -> None:
    world = replace(WORLD, decodes=2)
    story = Story(world, (DEMAND,), (SimFault(1.2, "hang", "decode0", seconds=25.0, phase="running"),), 60.0)
    assert run_story(story).violations == []
