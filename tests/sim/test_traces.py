"""Every request leaves one complete tree whose leaves tile its time, however it ends; a delay shows under its name."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from cli.waterfall import waterfall
from gateway.observability.clocks import WorkerClock
from gateway.observability.debug import spans_json
from gateway.observability.traces import SETTLE_SECONDS
from gateway.router import Local
from mesh import semconv
from mesh.messages import ClockReading, Commit, Landing, Open, Prefill, Ready, Sampling, Tier, Tokens
from mesh.rules import RULES
from mesh.telemetry import RecordingTelemetry, SpanRecord
from tests.harness.trees import by_trace, orphans, own_seconds, own_shares, picture, root_of, tiled_share
from tests.sim.cluster import Cluster, SimClient
from tests.sim.loop import run_virtual
from tests.sim.skew import skew

LONG = Sampling(max_tokens=80)


class TracedCluster:
    """A cluster whose traces are kept."""

    def __init__(self, seed: int = 1, **more: Any) -> None:
        self.telemetry = RecordingTelemetry()
        self.cluster = Cluster(seed, telemetry=self.telemetry, **more)

    def ask(self, tokens: int = 41, sampling: Sampling = LONG, first: int = 0, **more: Any) -> SimClient:
        return self.cluster.ask(tuple(range(first, first + tokens)), sampling, **more)

    def serving(self, tier: Tier) -> str:
        """The process of this tier that serves the only request."""
        (request,) = self.cluster.gateway.sequencer.requests.values()
        incarnation = request.decode if tier is Tier.DECODE else request.prefill
        return next(each.name for each in self.cluster.processes.values() if each.incarnation == incarnation)

    async def trees(self) -> list[list[SpanRecord]]:
        assert await self.cluster.finish() == []
        await asyncio.sleep(SETTLE_SECONDS + 0.1)
        return list(by_trace(self.telemetry.spans).values())

    async def tree(self) -> list[SpanRecord]:
        (tree,) = await self.trees()
        return tree


def check(tree: list[SpanRecord]) -> None:
    assert orphans(tree) == [], picture(tree)
    assert tiled_share(tree) >= 0.98, picture(tree)
    root = root_of(tree)
    explained = waterfall(spans_json(tree, root.start_seconds))
    assert explained.tiled >= 0.98, f"a frame without stages\n{picture(tree)}"
    for span in tree:
        assert root.start_seconds <= span.start_seconds <= span.end_seconds <= root.end_seconds, picture(tree)


def names(tree: list[SpanRecord]) -> set[str]:
    return {span.name for span in tree}


def test_a_remote_request_is_one_tree_of_named_phases() -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(1, 1)
        traced.ask()
        tree = await traced.tree()
        check(tree)
        by_name = {span.name: span for span in tree}
        below = {
            name: {span.name for span in tree if span.parent_id == by_name[name].span_id}
            for name in (semconv.PREFILL, semconv.DECODE, "chat sim")
        }
        assert below[semconv.PREFILL] == {"dispatch", "queue", "kv.reserve", "compute", "kv.send"}
        assert below[semconv.DECODE] == {"dispatch", "kv.reserve", "kv.receive", "queue", "generate"}
        outer = {"preprocess", "admission", "route", "prefill", "decode", "deliver", "postprocess"}
        assert below["chat sim"] == outer
        link, send = by_name[semconv.KV_RECEIVE].links[0], by_name[semconv.KV_SEND]
        assert (link.trace_id, link.span_id) == (send.trace_id, send.span_id)
        shares = own_shares(tree)
        assert all(share <= 0.05 for name, share in shares.items() if name not in semconv.WORK), shares
        sent = send.attributes
        assert 0.5 < float(str(sent[semconv.KV_HIDDEN])) < 1.0 and sent[semconv.KV_PAGES] == 11
        chunks = [event for event in by_name[semconv.COMPUTE].events if event.name == semconv.CHUNK]
        assert sum(int(str(chunk.attributes[semconv.TOKENS])) for chunk in chunks) == 41
        assert by_name[semconv.GENERATE].attributes[semconv.TOKENS] == 79

    run_virtual(main())


def test_a_local_request_computes_at_decode() -> None:
    async def main() -> None:
        traced = TracedCluster(local=Local.ALWAYS)
        await traced.cluster.start(0, 1)
        traced.ask()
        tree = await traced.tree()
        check(tree)
        assert names(tree) >= {"queue", "compute", "generate"} and semconv.PREFILL not in names(tree)
        assert root_of(tree).attributes[semconv.PATH] == "local"

    run_virtual(main())


def test_a_request_of_one_token_ends_with_prefills_token() -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(1, 1)
        traced.ask(sampling=Sampling(max_tokens=1))
        tree = await traced.tree()
        check(tree)
        assert semconv.DELIVER in names(tree)

    run_virtual(main())


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("after", [0.001, 0.01, 0.04, 0.15])
def test_a_request_whose_worker_dies_stays_one_tree(victim: str, after: float) -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(1, 1)
        client = traced.ask()
        await asyncio.sleep(after)
        await traced.cluster.restart(victim)
        tree = await traced.tree()
        assert client.error is None
        check(tree)
        attempts = [span for span in tree if span.name == semconv.DECODE]
        resumed = root_of(tree).attributes[semconv.PATH] == "resumed"
        assert resumed == (len(attempts) > 1)
        if victim == "decode0":
            assert resumed
            assert attempts[0].attributes[semconv.LOST] == "worker_ended"

    run_virtual(main())


@pytest.mark.parametrize("local", [Local.AUTO, Local.ALWAYS])
def test_time_of_a_decode_worker_that_died_is_its_own_and_not_that_of_a_way_to_the_gateway(local: Local) -> None:
    async def main() -> None:
        traced = TracedCluster(local=local)
        await traced.cluster.start(1, 2)
        client = traced.ask()
        while len(client.seen) < 40:
            await asyncio.sleep(0.001)
        died_at = asyncio.get_running_loop().time()
        handed = client.handle.timings.handoff_seconds
        await traced.cluster.restart(traced.serving(Tier.DECODE))
        tree = await traced.tree()
        check(tree)
        timings = client.handle.timings
        assert timings.handoff_seconds == handed and timings.attempts == 2
        dead, after = (span for span in tree if span.name == semconv.DECODE)
        (generate,) = (s for s in tree if s.parent_id == dead.span_id and s.name == semconv.GENERATE)
        assert dead.attributes[semconv.DIED] and generate.attributes[semconv.DIED]
        assert "died" in dead.error and "died" in generate.error and not after.error
        assert int(str(generate.attributes[semconv.TOKENS])) >= 38
        assert generate.service == dead.attributes[semconv.WORKER]
        resume = float(str(dead.attributes[semconv.RESUME]))
        next_token = generate.end_seconds + resume
        assert died_at - 0.01 <= generate.end_seconds <= died_at and dead.end_seconds < next_token <= after.end_seconds
        assert own_seconds(tree)[semconv.GENERATE] >= generate.end_seconds - generate.start_seconds
        assert all(s.end_seconds - s.start_seconds < 0.01 for s in tree if s.name == semconv.DELIVER), picture(tree)
        prefills = [s for s in tree if s.name == semconv.PREFILL and s.attributes[semconv.ATTEMPT] == 1]
        assert not any(semconv.LOST in span.attributes for span in prefills), "prefill had done its work"

    run_virtual(main())


def test_a_lease_that_runs_out_shows_as_silence() -> None:
    async def main() -> None:
        traced = TracedCluster(local=Local.ALWAYS)
        await traced.cluster.start(0, 2)
        client = traced.ask()
        while len(client.seen) < 20:
            await asyncio.sleep(0.001)
        traced.cluster.freeze(traced.serving(Tier.DECODE))
        tree = await traced.tree()
        check(tree)
        assert own_seconds(tree)[semconv.SILENCE] == pytest.approx(RULES.lease_seconds, rel=0.3), picture(tree)
        dead = next(span for span in tree if span.name == semconv.DECODE)
        assert float(str(dead.attributes[semconv.RESUME])) > own_seconds(tree)[semconv.SILENCE]

    run_virtual(main())


def test_a_prefill_worker_that_died_shows_what_it_computed() -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(2, 1)
        traced.ask()
        await asyncio.sleep(0.02)
        await traced.cluster.kill(traced.serving(Tier.PREFILL))
        tree = await traced.tree()
        check(tree)
        dead = next(span for span in tree if semconv.DIED in span.attributes and span.name == semconv.PREFILL)
        below = {span.name: span for span in tree if span.parent_id == dead.span_id}
        assert below[semconv.COMPUTE].error and below[semconv.COMPUTE].service == dead.attributes[semconv.WORKER]
        assert not any(span.error for span in tree if span.name == semconv.DECODE), "the decode worker lives"

    run_virtual(main())


@pytest.mark.parametrize(("decodes", "lacks"), [(0, "decode worker"), (1, "prefill worker")])
def test_a_wait_says_which_worker_is_not_attached(decodes: int, lacks: str) -> None:
    async def main() -> None:
        traced = TracedCluster(patience_seconds=3.0, local=Local.NEVER)
        await traced.cluster.start(0, decodes)
        client = traced.ask()
        client.may_fail = True
        tree = await traced.tree()
        assert client.error is not None and f"no {lacks} is attached" in client.error.message
        waits = [span for span in tree if span.name == semconv.ADMISSION]
        assert [span.attributes[semconv.WAITS_FOR] for span in waits] == [lacks]

    run_virtual(main())


def test_steps_that_two_requests_share_are_counted() -> None:
    async def main() -> None:
        for requests in (1, 2):
            traced = TracedCluster()
            await traced.cluster.start(1, 1)
            for number in range(requests):
                traced.ask(first=100 * number)
            for tree in await traced.trees():
                (generate,) = (span for span in tree if span.name == semconv.GENERATE)
                assert generate.attributes[semconv.BATCH] == requests
                assert (int(str(generate.attributes[semconv.SHARED_STEPS])) > 0) == (requests == 2)

    run_virtual(main())


def test_a_cancelled_request_ends_when_its_client_leaves() -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(1, 1)
        client = traced.ask()
        await asyncio.sleep(0.06)
        client.handle.cancel()
        tree = await traced.tree()
        check(tree)
        assert root_of(tree).attributes[semconv.STATUS] == "cancelled"

    run_virtual(main())


def test_a_request_without_a_worker_waits_in_admission() -> None:
    async def main() -> None:
        traced = TracedCluster(patience_seconds=3.0)
        await traced.cluster.start(0, 0)
        client = traced.ask()
        client.may_fail = True
        tree = await traced.tree()
        assert client.error is not None
        check(tree)
        assert own_seconds(tree)[semconv.ADMISSION] == pytest.approx(3.0, abs=0.01)
        root = root_of(tree)
        assert root.attributes[semconv.STATUS] == "error" and root.error == "UNAVAILABLE"

    run_virtual(main())


def test_a_preempted_request_shows_its_preemption_and_its_resume() -> None:
    async def main() -> None:
        traced = TracedCluster(pages=24)
        await traced.cluster.start(1, 1)
        for number in range(2):
            traced.ask(tokens=8, sampling=Sampling(max_tokens=60), first=100 * number)
        trees = await traced.trees()
        assert len(trees) == 2
        for tree in trees:
            check(tree)
        events = {event.name for tree in trees for span in tree for event in span.events}
        assert {semconv.PREEMPTED, semconv.RESUMED} <= events
        assert {root_of(tree).attributes[semconv.PATH] for tree in trees} >= {"resumed"}

    run_virtual(main())


@pytest.mark.parametrize("seed", range(8))
def test_many_requests_under_faults_are_complete_trees(seed: int) -> None:
    async def main() -> None:
        traced, random = TracedCluster(seed, pages=48), Random(seed)
        cluster = traced.cluster
        await cluster.start(2, 2)
        for number in range(12):
            client = traced.ask(random.randint(2, 60), Sampling(max_tokens=random.randint(1, 30)), first=100 * number)
            await asyncio.sleep(random.uniform(0.0, 0.03))
            if number % 4 == 1:
                await cluster.restart(random.choice(["prefill0", "prefill1", "decode0", "decode1"]))
            if number % 5 == 2:
                client.handle.cancel()
        trees = await traced.trees()
        assert len(trees) == 12
        for tree in trees:
            check(tree)

    run_virtual(main())


# ---- delays

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


def test_a_worker_whose_loop_stands_still_when_a_request_comes_shows_it_inside_the_way() -> None:
    async def main() -> None:
        traced = TracedCluster(local=Local.ALWAYS)
        await traced.cluster.start(0, 1)
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

    run_virtual(main())


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


def test_sampled_steps_are_traces_of_their_own_with_links_to_their_requests() -> None:
    async def main() -> None:
        traced = TracedCluster(trace_steps=5)
        await traced.cluster.start(1, 1)
        traced.ask()
        tree = await traced.tree()
        steps = [span for span in traced.telemetry.spans if span.name == semconv.ENGINE_STEP]
        assert len({step.trace_id for step in steps} | {tree[0].trace_id}) == len(steps) + 1 > 10
        attempts = {span.span_id for span in tree if span.name in (semconv.PREFILL, semconv.DECODE)}
        assert {link.span_id for step in steps for link in step.links} == attempts

    run_virtual(main())


def test_an_unrecorded_request_makes_workers_record_nothing() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start(1, 1)
        cluster.ask(tuple(range(41)))
        assert await cluster.finish() == []
        kinds = {what for _, _, _, what in cluster.network.log}
        assert not kinds & {"Phases", "ClockProbe", "ClockReading"}

    run_virtual(main())


def test_a_blocked_event_loop_is_a_span_of_its_own() -> None:
    async def main() -> None:
        traced = TracedCluster()
        await traced.cluster.start(1, 1)
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

    run_virtual(main())
