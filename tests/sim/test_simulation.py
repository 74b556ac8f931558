"""The mesh under virtual time and faults: the same code, other time and network; determined by its seed alone."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from gateway.observability.traces import SETTLE_SECONDS
from mesh.messages import Sampling
from mesh.telemetry import RecordingTelemetry
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.many import run_seed
from tests.sim.seeds.removals import REMOVALS, removed
from tests.sim.seeds.run import Outcome, run_story
from tests.sim.seeds.shrinking import fewest, shrink, tell

SEEDS = range(1000, 1020)


def test_one_prompt_goes_through_both_tiers_and_its_text_is_right() -> None:
    async def main() -> None:
        telemetry = RecordingTelemetry()
        cluster = Cluster(1, telemetry=telemetry)
        await cluster.start(1, 1)
        client = cluster.ask(tuple(range(21)), Sampling(max_tokens=9))
        assert await cluster.finish() == []
        assert client.error is None and len(client.seen) == 9
        await asyncio.sleep(SETTLE_SECONDS)
        assert {"chat sim", "queue", "compute", "kv.send", "kv.receive", "generate"} <= {
            s.name for s in telemetry.spans
        }

    run_virtual(main())


@cache
def chaos(seed: int) -> Outcome:
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_harm_no_request(seed: int) -> None:
    assert chaos(seed).violations == []


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert run_seed(SEEDS[0]).log_hash == chaos(SEEDS[0]).log_hash != chaos(SEEDS[1]).log_hash


def test_without_faults_a_hundred_requests_end_without_an_error() -> None:
    story = draw(3, faults=False, requests=100)
    outcome = run_story(replace(story, demands=tuple(replace(each, deadline_seconds=None) for each in story.demands)))
    assert outcome.violations == [] and outcome.errors == 0 and outcome.requests == 100


def test_a_run_is_a_minute_of_load_or_more_and_goes_where_it_hurts() -> None:
    """Otherwise the tests above show nothing."""
    hits, reached = set[str](), Counter[str]()
    for seed in SEEDS:
        hits |= set(chaos(seed).hits)
        reached.update(chaos(seed).reached)
    assert sum(chaos(seed).load_seconds >= 60 for seed in SEEDS) > len(SEEDS) / 2
    assert hits >= {"kill", "freeze", "drain", "kill gateway", "snap", "cut", "torn", "cancel", "stall", "deadline"}
    rare = ("a lease expires at a gateway's session", "pages are quarantined", "a landing is lost with its session")
    assert all(reached[path] for path in rare)


@pytest.mark.parametrize("name", ["dead gateway at decode", "dead gateway at prefill", "landing's progress"])
def test_without_a_protection_a_seed_fails(name: str) -> None:
    with removed(name) as rules:
        assert any(run_story(draw(seed), rules=rules).violations for seed in range(NOTICED[name], NOTICED[name] + 2))


# A seed that fails without the protection; `python -m tests.sim --remove NAME` finds one.
NOTICED = {"dead gateway at decode": 0, "dead gateway at prefill": 0, "landing's progress": 0}


def test_at_least_thirty_protections_can_be_removed() -> None:
    assert len(REMOVALS) >= 30 and all(removal.what for removal in REMOVALS.values())


def test_leaving_out_keeps_just_what_fails() -> None:
    assert fewest(range(100), lambda some: {17, 64} <= set(some)) == [17, 64]
    assert fewest((), lambda some: True) == ()


def test_a_failing_story_is_told_with_few_faults_and_requests() -> None:
    with removed("checksum") as rules:
        found = next(o for seed in range(50) if (o := (draw(seed), run_story(draw(seed), rules=rules)))[1].violations)
        story, outcome = shrink(*found, rules=rules, seconds=20)
    assert len(story.faults) < len(found[0].faults) or len(story.demands) < len(found[0].demands)
    assert tell(story, outcome)[-1].startswith("=> ")
