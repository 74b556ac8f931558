"""A delay in any stage shows in the trace under its own name, though clocks differ or a loop stands still."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.routing.router import Local
from gateway.workers.clocks import WorkerClock
from mesh.messages.kv_messages import Commit, Landing, Ready
from mesh.messages.orders import Open, Prefill
from mesh.messages.reports import ClockReading, Tokens
from mesh.rules import RULES
from mesh.telemetry import semconv
from mesh.telemetry.spans import SpanRecord
from tests.harness.trees import own_seconds, own_shares, picture, root_of
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual
from tests.sim.skew import skew
from tests.sim.traced import TracedCluster, check

DELAY = 0.08
Delayed = Callable[[Any], bool]


def of_kind(kind: type) -> Delayed:
    return lambda message: isinstance(message, kind)


def last_tokens(message: Any) -> bool:
    return isinstance(message, Tokens) and message.items[-1].token.end.value != "none"


OPEN = of_kind(Open)


@pytest.mark.parametrize(
    ("delayed", "shown"),
    [
        (of_kind(Prefill), semconv.DISPATCH),
        (OPEN, semconv.DISPATCH),
        (of_kind(Ready), semconv.KV_RESERVE),
        (of_kind(Landing), semconv.KV_RESERVE),
        (of_kind(Commit), semconv.KV_RECEIVE),
        (last_tokens, semconv.DELIVER),
    ],
    ids=["prefill", "open", "ready", "landing", "commit", "last token"],
)
def test_a_message_that_is_late_delays_the_span_of_its_way_and_no_other(delayed: Delayed, shown: str) -> None:
    async def run(late: bool) -> dict[str, float]:
        traced = TracedCluster()
        cluster = traced.cluster
        await cluster.start(1, 1)
        if late:
            release = cluster.network.hold(_once(delayed, lambda: loop.call_later(DELAY, release)))
            loop = asyncio.get_running_loop()
        traced.ask()
        tree = await traced.tree()
        check(tree)
        return own_seconds(tree)

    before, after = run_virtual(run(False)), run_virtual(run(True))
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}}
    assert grown.pop(shown) == pytest.approx(DELAY, abs=0.01), (before, after)
    if delayed is OPEN:  # Ready has overtaken Open: prefill asks again after a while
        assert grown.pop(semconv.KV_RESERVE) < RULES.again_seconds
    assert all(abs(seconds) < 0.01 for seconds in grown.values()), grown


@virtual
async def test_a_worker_whose_loop_stands_still_when_a_request_comes_shows_it_inside_the_way() -> None:
    traced = await TracedCluster(local=Local.ALWAYS).start(0, 1)
    loop: Any = asyncio.get_running_loop()
    first = traced.ask(first=100)
    await asyncio.sleep(0.05)
    traced.ask()
    loop.call_soon(loop.stand_still, DELAY)
    trees = await traced.trees()
    later = next(tree for tree in trees if root_of(tree).attributes[semconv.REQUEST_ID] != first.spec.request_id)
    check(later)
    own = own_seconds(later)
    assert own[semconv.LOOP_BLOCKED] == pytest.approx(DELAY, abs=0.01)
    assert own.get(semconv.DISPATCH, 0.0) < 0.01
    (way,) = (span for span in later if span.name == semconv.DISPATCH)
    inside = [span for span in later if span.parent_id == way.span_id]
    assert {span.service for span in inside} == {"gateway", "decode0"}, "both run on this one loop"


def _once(delayed: Delayed, on_first: Callable[[], object]) -> Callable[[str, str, Any], bool]:
    """Hold back the first such message; `on_first` is called when it comes."""
    first: list[Any] = []

    def held(source: str, target: str, message: Any) -> bool:
        if not first and delayed(message):
            first.append(message)
            on_first()
        return bool(first) and message is first[0]

    return held


# ---- clocks


def clock_test(*, corrected: bool) -> list[SpanRecord]:
    async def main() -> list[SpanRecord]:
        traced = TracedCluster()
        cluster = traced.cluster
        skew(cluster.network, {"decode0": 5.0, "prefill0": -5.0})
        await cluster.start(1, 1)
        if not corrected:
            for worker in cluster.gateway.workers:
                worker.clock.stop()
                worker.clock = _Uncorrected(worker.clock)
        await asyncio.sleep(0.1)
        traced.ask()
        return await traced.tree()

    return run_virtual(main())


class _Uncorrected(WorkerClock):
    def __init__(self, other: WorkerClock) -> None:
        super().__init__(lambda probe: None)

    def read(self, reading: ClockReading) -> None:
        pass


def test_a_worker_whose_clock_is_seconds_off_makes_a_right_waterfall() -> None:
    tree = clock_test(corrected=True)
    check(tree)
    shares = own_shares(tree)
    assert shares[semconv.GENERATE] > 0.5 and shares[semconv.COMPUTE] > 0.05
    assert all(share <= 0.05 for name, share in shares.items() if name not in semconv.WORK), shares


def test_negative_control_without_the_correction_the_waterfall_is_wrong() -> None:
    shares = own_shares(clock_test(corrected=False))
    assert shares.get(semconv.GENERATE, 0.0) < 0.1 or shares.get(semconv.COMPUTE, 0.0) < 0.01


@virtual
async def test_sampled_steps_are_traces_of_their_own_with_links_to_their_requests() -> None:
    traced = await TracedCluster(trace_steps=5).start(1, 1)
    traced.ask()
    tree = await traced.tree()
    steps = [span for span in traced.telemetry.spans if span.name == semconv.ENGINE_STEP]
    assert len({step.trace_id for step in steps} | {tree[0].trace_id}) == len(steps) + 1 > 10
    attempts = {span.span_id for span in tree if span.name in (semconv.PREFILL, semconv.DECODE)}
    assert {link.span_id for step in steps for link in step.links} == attempts


@virtual
async def test_an_unrecorded_request_makes_workers_record_nothing() -> None:
    cluster = await Cluster(1).start(1, 1)
    cluster.ask(tuple(range(41)))
    assert await cluster.finish() == []
    kinds = {what for _, _, _, what in cluster.network.log}
    assert not kinds & {"Phases", "ClockProbe", "ClockReading"}


@virtual
async def test_a_blocked_event_loop_is_a_span_of_its_own() -> None:
    traced = await TracedCluster().start(1, 1)
    traced.ask()
    await asyncio.sleep(0.1)
    loop: Any = asyncio.get_running_loop()
    loop.call_soon(loop.stand_still, DELAY)
    tree = await traced.tree()
    check(tree)
    assert own_seconds(tree)[semconv.LOOP_BLOCKED] == pytest.approx(DELAY, abs=0.006), picture(tree)
    blocked = [span for span in tree if span.name == semconv.LOOP_BLOCKED and span.service == "decode0"]
    generate = next(span for span in tree if span.name == semconv.GENERATE)
    assert {span.parent_id for span in blocked} == {generate.span_id}
