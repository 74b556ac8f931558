"""The wait that admission control estimates is that of the shortest route, and costs little however many workers are
attached. Whose hosts decide who fits whom is part of it."""

import sys
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any

import pytest

from gateway.routing.registry import Workers
from gateway.routing.router import Local
from gateway.sequencing.admission_control import AdmissionControl
from gateway.sequencing.ended_requests import Tally
from gateway.workers.attached import AttachedWorker
from gateway.workers.pairs import fits, hosts_matter, kind_of
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Load
from tests.unit.gateway.exhaustive import shortest_wait
from tests.unit.gateway.routing.test_route_costs import some_load, worker, world


def admission(workers: list[AttachedWorker], local: Local) -> AdmissionControl:
    attached = Workers()
    for each in workers:
        attached.add(each)
    return AdmissionControl(attached, Tally(), lambda now, model: None, local=local, max_waiting=9, queue_seconds=10.0)


@pytest.mark.parametrize("seed", range(200))
def test_the_estimate_is_the_shortest_wait_of_all_routes(seed: int) -> None:
    random = Random(seed)
    workers, local = world(random), random.choice(list(Local))
    control = admission(workers, local)
    for _ in range(3):
        for examined in (False, True):
            expected = shortest_wait(workers, local, examined=examined)
            assert control.wait_seconds("m", examined=examined) == pytest.approx(expected)
        for each in random.sample(workers, min(2, len(workers))):
            each.report(some_load(random, each.tier))
            each.count(random.randrange(500))
            each.has_behind(random.randrange(500))
        if random.random() < 0.3:
            random.choice(workers).hangs(True)


def calls_of(work: Any) -> int:
    """How many Python functions the work calls."""
    count = 0

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_thousand_workers_on_as_many_hosts_cost_no_more_than_a_few() -> None:
    def calls(count: int) -> int:
        workers = [worker(tier, 2 * i + (tier is Tier.DECODE) + 1) for i in range(count // 2) for tier in Tier]
        for each in workers:
            reach = PageReach(f"host{each.incarnation}", 1, opaque_pages((1, 64), content="m"), ("shm", "tcp"))
            each.hello = replace(each.hello, pages=reach)
        control = admission(workers, Local.AUTO)
        control.wait_seconds("m")
        workers[0].report(Load(queued_tokens=9))
        return calls_of(lambda: control.wait_seconds("m"))

    assert calls(1000) <= calls(4)


MIXES = [("shm",), ("shm", "nccl"), ("shm", "tcp"), ("tcp",), ("nccl",), ("cuda_ipc", "nccl"), ("cuda_ipc", "shm"), ()]


@pytest.mark.parametrize("seed", range(100))
def test_workers_of_one_kind_fit_the_same_others(seed: int) -> None:
    random, workers = Random(seed), list[AttachedWorker]()
    mixes = random.sample(MIXES, 3)
    for incarnation in range(1, 12):
        one = worker(random.choice(list(Tier)), incarnation)
        reach = PageReach(
            random.choice("xy"), random.choice((1, 2)), opaque_pages((1, 64), content="m"), random.choice(mixes)
        )
        one.hello = replace(one.hello, pages=random.choice((None, reach, reach)))
        workers.append(one)
    hosts = hosts_matter(workers)
    prefills = [each for each in workers if each.tier is Tier.PREFILL]
    decodes = [each for each in workers if each.tier is Tier.DECODE]
    for one in prefills:
        for other in prefills:
            if kind_of(one, hosts=hosts) == kind_of(other, hosts=hosts):
                assert [fits(one, each) for each in decodes] == [fits(other, each) for each in decodes]


def test_hosts_decide_only_where_shared_memory_is_the_only_way_in_common() -> None:
    def bound(*mixes: tuple[str, ...]) -> frozenset[frozenset[str]]:
        workers = [worker(Tier.PREFILL, at) for at in range(1, len(mixes) + 1)]
        for each, mix in zip(workers, mixes, strict=True):
            each.hello = replace(each.hello, pages=PageReach("x", 1, opaque_pages((1, 64), content="m"), mix))
        return hosts_matter(workers)

    assert bound(("shm", "tcp"), ("tcp",)) == frozenset(), "hundreds of hosts are one kind"
    assert bound(("shm", "nccl"), ("shm", "tcp")) == {frozenset(("shm", "nccl")), frozenset(("shm", "tcp"))}
    assert bound(("shm",), ("tcp",)) == {frozenset(("shm",))}
