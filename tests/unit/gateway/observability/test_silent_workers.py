"""A worker from which nothing comes is named until it is back, also after the lease has ended its session."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.attaching.silent_workers import KEPT_SECONDS, MOST_KEPT
from gateway.core.interface import SilentFacts
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.ui_state import state_of
from gateway.process import whole_pages as pages
from gateway.process.siblings import OwnAnswer
from mesh.rules import RULES
from tests.unit.gateway.attaching.test_refused_workers import GatewayWorld, OneTokenWorker, in_world


def stand_still(worker: OneTokenWorker) -> None:
    """The worker sends nothing any more, and its connection lives."""
    session = cast(Any, worker.session)
    session._timer.cancel()
    session.send = lambda message: None
    session.close = lambda: None


def names(world: GatewayWorld) -> list[tuple[str, bool]]:
    return [(each.name, each.attached) for each in world.gateway.silent_workers()]


def test_a_worker_is_named_within_its_lease_and_until_it_is_back() -> None:
    async def story(world: GatewayWorld) -> None:
        one, other = world.worker("one", incarnation=1), world.worker("other", incarnation=2)
        await one.join()
        await other.join()
        await asyncio.sleep(30.0)
        assert names(world) == []
        stand_still(one)
        await asyncio.sleep(RULES.lease_seconds - 1.0)
        assert names(world) == [("one", True)]
        await asyncio.sleep(3.0)
        (facts,) = world.gateway.silent_workers()
        assert facts == SilentFacts("one", "decode", "one", facts.silent_seconds, False)
        assert RULES.lease_seconds < facts.silent_seconds < RULES.lease_seconds + 4.0
        assert world.gateway.healthy() and len(world.gateway.workers) == 1
        await world.worker("third", incarnation=3).join()
        assert names(world) == [("one", False)], "another worker is not this one"
        await world.worker("elsewhere", incarnation=4, name="one").join()
        assert names(world) == [], "a process with its name has taken its place"

    in_world(story)


def test_a_worker_without_a_name_of_its_own_is_back_at_its_address_or_as_the_same_process_or_forgotten() -> None:
    async def story(world: GatewayWorld) -> None:
        first = world.worker("here", incarnation=1, name="decode")
        await first.join()
        stand_still(first)
        await asyncio.sleep(RULES.lease_seconds + 2.0)
        await world.worker("there", incarnation=2, name="decode").join()
        assert names(world) == [("decode", False)], "all workers may have the name of their tier"
        first.session = None
        await first.register()
        await asyncio.sleep(1.0)
        assert names(world) == []
        stand_still(first)
        await asyncio.sleep(RULES.lease_seconds + 2.0)
        assert names(world) == [("decode", False)]
        await asyncio.sleep(KEPT_SECONDS)
        assert names(world) == []

    in_world(story)


def test_a_worker_that_dies_or_drains_is_not_silent() -> None:
    async def story(world: GatewayWorld) -> None:
        one = world.worker("one", incarnation=1)
        await one.join()
        assert one.session is not None
        one.session.close()
        await asyncio.sleep(1.0)
        assert names(world) == [] and len(world.gateway.workers) == 0

    in_world(story)


def test_the_metric_and_the_page_name_it_too() -> None:
    async def story(world: GatewayWorld) -> None:
        one = world.worker("one", incarnation=1)
        await one.join()
        stand_still(one)
        collector = MeshCollector(
            world.gateway,
            MetricsByModel({"tiny": 256}),
            name="gateway",
            vllm=False,
            clock=asyncio.get_running_loop().time,
            spans_dropped=lambda: 0,
        )
        for seconds, attached in ((RULES.lease_seconds - 1.0, True), (3.0, False)):
            await asyncio.sleep(seconds)
            found = {spec.name: series for spec, series in filter(None, collector.collect())}
            (series,) = found["baton_worker_silent_seconds"]
            assert series.values == ("one", "decode") and cast(float, series.value) > 3.0
            (shown,) = state_of(world.gateway)["silent"]
            assert (shown["name"], shown["tier"], shown["attached"]) == ("one", "decode", attached)

    in_world(story)


def test_the_list_stays_bounded() -> None:
    async def story(world: GatewayWorld) -> None:
        for number in range(MOST_KEPT + 5):
            hello = SimpleNamespace(incarnation=number, name=f"n{number}", tier=None, address="a")
            session = SimpleNamespace(heard_seconds=0.0)
            worker = SimpleNamespace(hello=hello, session=session, name=hello.name, incarnation=number)
            world.gateway.silent.lost(cast(Any, worker))
        assert len(world.gateway.silent.now()) == MOST_KEPT

    in_world(story)


@pytest.mark.parametrize("longer", [0, 1])
def test_of_several_processes_the_one_that_has_heard_nothing_for_longest_speaks(longer: int) -> None:
    one = {"name": "one", "tier": "decode", "address": "a:1", "silent_seconds": 4.0, "attached": True}
    both = [{"status": "ok", "silent_workers": [one | {"silent_seconds": 4.0 + (n == longer)}]} for n in range(2)]
    first, second = (OwnAnswer(200, json.dumps(each).encode()) for each in both)
    (found,) = json.loads(pages.health(first, [second]).content)["silent_workers"]
    assert found["silent_seconds"] == 5.0
