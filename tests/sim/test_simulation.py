"""The mesh under virtual time and faults: the same code, other time and network; determined by its seed alone."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from gateway.routing.router import Local
from gateway.tracing.traces import SETTLE_SECONDS
from mesh.messages.jobs import Sampling
from mesh.telemetry.spans import RecordingTelemetry
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual
from tests.sim.seeds import run
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.many import run_seed
from tests.sim.seeds.removals import REMOVALS, removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.shrinking import fewest, shrink, tell
from tests.sim.seeds.story import Demand, SimFault, SimWorld, Story

SEEDS = range(1000, 1012)


@virtual
async def test_one_prompt_goes_through_both_tiers_and_its_text_is_right() -> None:
    telemetry = RecordingTelemetry()
    cluster = await Cluster(1, telemetry=telemetry).start(1, 1)
    client = cluster.ask(tuple(range(21)), Sampling(max_tokens=9))
    assert await cluster.finish() == []
    assert client.error is None and len(client.seen) == 9
    await asyncio.sleep(SETTLE_SECONDS)
    assert {"chat sim", "queue", "compute", "kv.send", "kv.receive", "generate"} <= {s.name for s in telemetry.spans}


@cache
def chaos(seed: int) -> RunOutcome:
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_harm_no_request(seed: int) -> None:
    assert chaos(seed).violations == []


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert run_seed(SEEDS[0]).log_hash == chaos(SEEDS[0]).log_hash != chaos(SEEDS[1]).log_hash


def test_without_faults_a_hundred_requests_end_without_an_error() -> None:
    story = draw(3, faults=False, requests=100)
    demands = tuple(replace(each, deadline_seconds=None) for each in story.demands)
    world = replace(story.world, pages=96, prefill_pages=96)  # room for every request
    outcome = run_story(replace(story, world=world, demands=demands))
    assert outcome.violations == [] and outcome.errors == 0 and outcome.requests == 100


def test_a_run_is_a_minute_of_load_or_more_and_goes_where_it_hurts() -> None:
    """Control: without faults that strike, the tests above would show nothing."""
    hits, reached = set[str](), Counter[str]()
    for seed in SEEDS:
        hits |= set(chaos(seed).hits)
        reached.update(chaos(seed).reached)
    assert sum(chaos(seed).load_seconds >= 60 for seed in SEEDS) > len(SEEDS) / 2
    assert hits >= {"kill", "freeze", "drain", "kill gateway", "snap", "cut", "torn", "cancel", "stall", "deadline"}
    rare = ("a lease expires at a gateway's session", "pages are quarantined", "a landing is lost with its session")
    assert all(reached[path] for path in rare)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("dead gateway at decode", 6),
        ("dead gateway at prefill", 5),
        ("suspects", 161),
        ("drains", 6),
        ("standing still", 2),
    ],
)
def test_without_a_protection_a_seed_fails(name: str, seed: int) -> None:
    """`python -m tests.sim --remove NAME` finds the seed."""
    with removed(name) as rules:
        assert run_story(draw(seed), rules=rules).violations


def test_a_landing_that_lacks_progress_is_noticed_where_it_is_not_given_up() -> None:
    """One write of the only prompt is 25 seconds late."""
    world = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, local=Local.NEVER)
    demand = Demand(1.0, tuple(range(20)), Sampling(max_tokens=5), 0)
    story = Story(world, (demand,), (SimFault(0.5, "late", seconds=25.0, pick=1),), 30.0)
    outcome = run_story(story)
    assert outcome.violations == [] and outcome.reached["a landing lacks progress"] == 1
    with removed("landing's progress") as rules:
        assert "is not given up" in run_story(story, rules=rules).violations[0]


def test_at_least_thirty_protections_can_be_removed() -> None:
    assert len(REMOVALS) >= 30 and all(removal.what for removal in REMOVALS.values())


def test_leaving_out_keeps_just_what_fails() -> None:
    assert fewest(range(100), lambda some: {17, 64} <= set(some)) == [17, 64]
    assert fewest((), lambda some: True) == ()


def test_a_failing_story_is_told_with_few_faults_and_requests() -> None:
    world = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, local=Local.NEVER)
    demands = tuple(Demand(at, tuple(range(20 + at)), Sampling(max_tokens=5), 0) for at in range(4))
    faults = tuple(SimFault(at, kind, pick=1) for at, kind in ((0.5, "twice"), (1.5, "flip"), (2.5, "twice")))
    story = Story(world, demands, faults, 10.0)
    with removed("checksum") as rules:
        shorter, outcome = shrink(story, run_story(story, rules=rules), rules=rules, seconds=60)
    assert [fault.kind for fault in shorter.faults] == ["flip"] and len(shorter.demands) == 1
    assert "gets token" in tell(shorter, outcome)[-1] and tell(shorter, outcome)[-2] == str(faults[1])


def test_a_slow_mesh_may_take_its_time_with_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimWorld(seed=1, prefills=1, decodes=1, gateways=1, step_seconds=1.0, max_batch=1)
    demands = tuple(Demand(at, tuple(range(30)), Sampling(max_tokens=20), 0) for at in range(12))
    outcome = run_story(Story(world, demands, (), 60.0))
    assert outcome.violations == []
    monkeypatch.setattr(run, "MOVES_SECONDS", 0.0)
    assert "never ends" in run_story(Story(world, demands, (), 60.0)).violations[0]
