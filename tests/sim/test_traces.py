"""Every request leaves one complete tree whose leaves tile its time, however it ends; a delay shows under its name."""

import asyncio
from random import Random

import pytest

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling, Tier
from mesh.rules import RULES
from mesh.telemetry import semconv
from tests.harness.trees import own_seconds, own_shares, picture, root_of
from tests.sim.loop import virtual
from tests.sim.traced import TracedCluster, check, names


@virtual
async def test_a_remote_request_is_one_tree_of_named_phases() -> None:
    traced = await TracedCluster().start(1, 1)
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


@virtual
async def test_a_local_request_computes_at_decode() -> None:
    traced = await TracedCluster(local=Local.ALWAYS).start(0, 1)
    traced.ask()
    tree = await traced.tree()
    check(tree)
    assert names(tree) >= {"queue", "compute", "generate"} and semconv.PREFILL not in names(tree)
    assert root_of(tree).attributes[semconv.PATH] == "local"


@virtual
async def test_a_request_of_one_token_ends_with_prefills_token() -> None:
    traced = await TracedCluster().start(1, 1)
    traced.ask(sampling=Sampling(max_tokens=1))
    tree = await traced.tree()
    check(tree)
    assert semconv.DELIVER in names(tree)


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("after", [0.001, 0.01, 0.04, 0.15])
@virtual
async def test_a_request_whose_worker_dies_stays_one_tree(victim: str, after: float) -> None:
    traced = await TracedCluster().start(1, 1)
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


@pytest.mark.parametrize("local", [Local.AUTO, Local.ALWAYS])
@virtual
async def test_time_of_a_decode_worker_that_died_is_its_own_and_not_that_of_a_way_to_the_gateway(local: Local) -> None:
    traced = await TracedCluster(local=local).start(1, 2)
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


@virtual
async def test_a_lease_that_runs_out_shows_as_silence() -> None:
    traced = await TracedCluster(local=Local.ALWAYS).start(0, 2)
    client = traced.ask()
    while len(client.seen) < 20:
        await asyncio.sleep(0.001)
    traced.cluster.freeze(traced.serving(Tier.DECODE))
    tree = await traced.tree()
    check(tree)
    assert own_seconds(tree)[semconv.SILENCE] == pytest.approx(RULES.lease_seconds, rel=0.3), picture(tree)
    dead = next(span for span in tree if span.name == semconv.DECODE)
    assert float(str(dead.attributes[semconv.RESUME])) > own_seconds(tree)[semconv.SILENCE]


@virtual
async def test_a_prefill_worker_that_died_shows_what_it_computed() -> None:
    traced = await TracedCluster().start(2, 1)
    traced.ask()
    await asyncio.sleep(0.02)
    await traced.cluster.kill(traced.serving(Tier.PREFILL))
    tree = await traced.tree()
    check(tree)
    dead = next(span for span in tree if semconv.DIED in span.attributes and span.name == semconv.PREFILL)
    below = {span.name: span for span in tree if span.parent_id == dead.span_id}
    assert below[semconv.COMPUTE].error and below[semconv.COMPUTE].service == dead.attributes[semconv.WORKER]
    assert not any(span.error for span in tree if span.name == semconv.DECODE), "the decode worker lives"


@pytest.mark.parametrize(("decodes", "lacks"), [(0, "decode worker"), (1, "prefill worker")])
@virtual
async def test_a_wait_says_which_worker_is_not_attached(decodes: int, lacks: str) -> None:
    traced = await TracedCluster(patience_seconds=3.0, local=Local.NEVER).start(0, decodes)
    client = traced.ask()
    client.may_fail = True
    tree = await traced.tree()
    assert client.error is not None and f"no {lacks} is attached" in client.error.message
    waits = [span for span in tree if span.name == semconv.ADMISSION]
    assert [span.attributes[semconv.WAITS_FOR] for span in waits] == [lacks]


@virtual
async def test_steps_that_two_requests_share_are_counted() -> None:
    for requests in (1, 2):
        traced = await TracedCluster().start(1, 1)
        for number in range(requests):
            traced.ask(first=100 * number)
        for tree in await traced.trees():
            (generate,) = (span for span in tree if span.name == semconv.GENERATE)
            assert generate.attributes[semconv.BATCH] == requests
            assert (int(str(generate.attributes[semconv.SHARED_STEPS])) > 0) == (requests == 2)


@virtual
async def test_a_cancelled_request_ends_when_its_client_leaves() -> None:
    traced = await TracedCluster().start(1, 1)
    client = traced.ask()
    await asyncio.sleep(0.06)
    client.handle.cancel()
    tree = await traced.tree()
    check(tree)
    assert root_of(tree).attributes[semconv.STATUS] == "cancelled"


@virtual
async def test_a_request_without_a_worker_waits_in_admission() -> None:
    traced = await TracedCluster(patience_seconds=3.0).start(0, 0)
    client = traced.ask()
    client.may_fail = True
    tree = await traced.tree()
    assert client.error is not None
    check(tree)
    assert own_seconds(tree)[semconv.ADMISSION] == pytest.approx(3.0, abs=0.01)
    root = root_of(tree)
    assert root.attributes[semconv.STATUS] == "error" and root.error == "UNAVAILABLE"


@virtual
async def test_a_preempted_request_shows_its_preemption_and_its_resume() -> None:
    traced = await TracedCluster(pages=24).start(1, 1)
    for number in range(2):
        traced.ask(tokens=8, sampling=Sampling(max_tokens=60), first=100 * number)
    trees = await traced.trees()
    assert len(trees) == 2
    for tree in trees:
        check(tree)
    events = {event.name for tree in trees for span in tree for event in span.events}
    assert {semconv.PREEMPTED, semconv.RESUMED} <= events
    assert {root_of(tree).attributes[semconv.PATH] for tree in trees} >= {"resumed"}


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_many_requests_under_faults_are_complete_trees(seed: int) -> None:
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


# ---- delays
