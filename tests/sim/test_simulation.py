"""The mesh under virtual time: the same code, other time and network; determined by its seed and nothing else."""

import asyncio
from functools import cache

import pytest

from gateway.observability.traces import SETTLE_SECONDS
from mesh.messages import Sampling
from mesh.telemetry import RecordingTelemetry
from tests.sim.chaos import SeedOutcome, run_seed
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual


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


def test_the_same_seed_gives_the_same_event_log_and_another_seed_another() -> None:
    logs = [run_seed(seed, requests=20).event_log_hash for seed in (5, 5, 6)]
    assert logs[0] == logs[1] != logs[2]


def test_without_faults_a_hundred_requests_end_without_an_error() -> None:
    outcome = run_seed(3, requests=100, faults=False)
    assert outcome.violations == [] and outcome.errors == 0


@cache
def chaos(seed: int) -> SeedOutcome:
    return run_seed(seed, requests=25)


@pytest.mark.parametrize("seed", range(1000, 1044))
def test_chaos_harms_no_request(seed: int) -> None:
    outcome = chaos(seed)
    assert outcome.violations == []
    assert outcome.requests == 25


def test_chaos_does_kill_freeze_cut_damage_and_cancel() -> None:
    """Otherwise the test above shows nothing."""
    kinds = set[str]()
    for seed in range(1000, 1012):
        kinds |= set(chaos(seed).faults)
    assert kinds >= {"kill", "freeze", "snap", "damage", "cancel"}
