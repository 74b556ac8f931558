"""Which request gets pages when there are not enough: waiting, ageing, preemption, and what can never fit."""

import asyncio
from dataclasses import replace

import pytest

from gateway.routing.router import Local
from mesh.errors import PoolTooSmall
from mesh.messages.jobs import FullKind, Reason, Sampling, Tier
from mesh.messages.kv_messages import Landing
from mesh.messages.message import Message
from mesh.messages.reports import Full, Lost
from mesh.rules import RULES
from tests.sim.busy import seem_busy
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual


def prompt(seed: int, tokens: int) -> tuple[int, ...]:
    return tuple((seed * 7919 + slot * 31 + 1) % 50 for slot in range(tokens))


def prefill_steps(cluster: Cluster) -> int:
    plans = cluster.prefill().plans
    assert plans is not None
    return len(plans)


def overheard(cluster: Cluster, kind: type[Message]) -> list[Message]:
    """Every message of a kind from now on, each once."""
    heard: list[Message] = []

    def listen(source: str, target: str, message: Message) -> bool:
        if isinstance(message, kind) and all(message is not other for other in heard):
            heard.append(message)
        return False

    cluster.network.hold(listen)
    return heard


async def full_decode(cluster: Cluster) -> SimClient:
    """One request holds so much of decode's 128 pages that no prompt of 40 tokens finds room beside it."""
    await cluster.start(1, 1)
    hog = cluster.ask(prompt(1, 476), Sampling(max_tokens=36))
    assert await cluster.until(lambda: len(hog.seen) >= 2)
    return hog


@virtual
async def test_while_decode_is_full_no_prefill_step_runs_and_then_all_twenty_finish() -> None:
    cluster = Cluster(1, pages=128, prefill_pages=512, local=Local.NEVER, chunk_tokens=64)
    hog = await full_decode(cluster)
    before = prefill_steps(cluster)
    twenty = [cluster.ask(prompt(10 + n, 40)) for n in range(20)]
    assert await cluster.until(lambda: len(cluster.decode().requests) == 21)
    assert await cluster.until(lambda: len(hog.seen) == 35)
    assert prefill_steps(cluster) == before
    assert not any(client.seen for client in twenty)
    assert await cluster.finish() == []
    assert all(len(client.seen) == 6 for client in twenty)


@virtual
async def test_requests_of_another_decode_worker_that_has_room_start_with_the_next_prefill_step() -> None:
    cluster = Cluster(1, pages=128, prefill_pages=512, local=Local.NEVER, chunk_tokens=64)
    hog = await full_decode(cluster)
    for n in range(20):
        cluster.ask(prompt(10 + n, 40))
    await cluster.add(Tier.DECODE, "decode1")
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 3)
    before = prefill_steps(cluster)
    other = cluster.ask(prompt(99, 41))
    assert await cluster.until(lambda: prefill_steps(cluster) > before)
    plans = cluster.prefill().plans
    assert plans is not None and plans[before].pieces[0].tokens == prompt(99, 41)
    assert await cluster.until(lambda: other.ended)
    assert len(hog.seen) < 36, "decode0 is still full"
    assert await cluster.finish() == []


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("ageing", [True, False])
@virtual
async def test_a_request_that_got_later_is_passed_by_at_most_eight_younger_ones(ageing: bool, local: Local) -> None:
    rules = RULES if ageing else replace(RULES, overtakes=1000)
    cluster = await Cluster(1, rules=rules, pages=128, prefill_pages=512, local=local, chunk_tokens=64).start(1, 1)
    landings = overheard(cluster, Landing)
    hog = cluster.ask(prompt(1, 300), Sampling(max_tokens=100))  # 100 pages in the end
    assert await cluster.until(lambda: len(hog.seen) >= 2)
    big = cluster.ask(prompt(2, 300))
    key = cluster.ticket(big).request
    await asyncio.sleep(0.005)
    for n in range(30):
        cluster.ask(prompt(10 + n, 7), Sampling(max_tokens=2))
    assert await cluster.finish() == []
    if local is Local.NEVER:
        order = [message.ticket.request for message in landings if isinstance(message, Landing)]
    else:
        order = list(dict.fromkeys(piece.key for plan in cluster.decode().plans or [] for piece in plan.pieces))
    assert order.index(key) - 1 == (8 if ageing else 30)


@virtual
async def test_no_request_waits_for_ever_for_a_full_batch() -> None:
    cluster = await Cluster(1, pages=128, max_batch=2, local=Local.NEVER).start(1, 1)
    clients = [cluster.ask(prompt(n, 12), Sampling(max_tokens=12)) for n in range(12)]
    worst = 0

    def crowd() -> bool:
        nonlocal worst
        plans = cluster.decode().plans or []
        worst = max([worst, *(len(plan.pieces) for plan in plans)])
        return all(client.ended for client in clients)

    assert await cluster.until(crowd)
    assert worst == 2
    assert await cluster.finish() == []


@virtual
async def test_a_full_batch_holds_for_local_prompts_too() -> None:
    cluster = await Cluster(1, pages=128, max_batch=2, local=Local.ALWAYS).start(0, 1)
    for n in range(6):
        cluster.ask(prompt(n, 12), Sampling(max_tokens=12))
    assert await cluster.finish() == []
    assert max(len(plan.pieces) for plan in cluster.decode().plans or []) == 2


@virtual
async def test_a_preempted_request_resumes_with_the_same_tokens() -> None:
    cluster = await Cluster(1, pages=12, local=Local.NEVER).start(1, 1)
    lost = overheard(cluster, Lost)
    clients = [cluster.ask(prompt(n, 8), Sampling(max_tokens=30)) for n in range(2)]  # ten pages each in the end
    assert await cluster.finish() == []
    assert {message.reason for message in lost if isinstance(message, Lost)} == {Reason.PREEMPTED}
    old, young = clients
    assert (old.handle.timings.attempts, len(old.seen)) == (1, 30), "the older one is never preempted"
    assert young.handle.timings.attempts > 1 and len(young.seen) == 30


@virtual
async def test_what_fits_into_no_pool_is_refused_at_once_and_harms_no_other_request() -> None:
    cluster = await Cluster(1, pages=8).start(1, 1)
    fine = cluster.ask(prompt(1, 8))
    huge = cluster.ask(prompt(2, 8), Sampling(max_tokens=25))
    huge.may_fail = True
    assert await cluster.until(lambda: huge.ended, 0.1)
    assert isinstance(huge.error, PoolTooSmall) and "33 tokens" in str(huge.error)
    assert await cluster.finish() == []
    assert fine.error is None


@virtual
async def test_what_fits_into_another_pool_goes_there() -> None:
    cluster = await Cluster(1, pages=8, prefill_pages=64).start(1, 1)
    await cluster.add(Tier.DECODE, "decode1", pages=64)
    await cluster.until(lambda: len(cluster.gateway.workers) == 3)
    for n in range(4):
        cluster.ask(prompt(n, 8), Sampling(max_tokens=25))
    assert await cluster.finish() == []


@virtual
async def test_a_prompt_larger_than_the_prefill_pool_goes_elsewhere() -> None:
    cluster = await Cluster(1, pages=64, prefill_pages=4).start(1, 1)
    lost = overheard(cluster, Lost)
    cluster.ask(prompt(1, 40))
    assert await cluster.finish(5) == []
    assert [message.reason for message in lost if isinstance(message, Lost)] == [Reason.TOO_LARGE]


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("other_worker", [False, True])
@virtual
async def test_what_does_not_fit_beside_stuck_pages_is_sent_on_until_they_are_proven(
    local: Local, other_worker: bool
) -> None:
    cluster = await Cluster(1, pages=16, local=Local.NEVER, may_kill=False).start(1, 1)
    cluster.fabric.hold(lambda write: True)
    victim = cluster.ask(prompt(1, 40), Sampling(max_tokens=4))  # eleven pages
    assert await cluster.until(lambda: len(cluster.fabric.waiting) == 20)
    incarnation = cluster.processes["prefill0"].incarnation
    await cluster.kill("prefill0", zombie=True)  # stopped in mid-write, not dead
    victim.handle.cancel()
    cluster.fabric.holding.clear()
    await cluster.add(Tier.PREFILL, "prefill0")
    assert await cluster.until(lambda: cluster.decode().landings.quarantine.stuck_pages == 10, 20)
    cluster.gateway.sequencer._local = local
    full = overheard(cluster, Full)
    if other_worker:
        await cluster.add(Tier.DECODE, "decode1")
        await cluster.until(lambda: len(cluster.gateway.workers) == 3)
        workers = {worker.hello.address: worker for worker in cluster.gateway.workers}
        seem_busy(workers["decode1"], 10_000)  # so that decode0 is tried first
    client = cluster.ask(prompt(2, 40), Sampling(max_tokens=4))
    await asyncio.sleep(1)
    assert [message.kind for message in full if isinstance(message, Full)] == [FullKind.NOW], "it is asked once"
    assert client.ended == other_worker
    cluster.fabric.died(incarnation)  # the proof
    assert await cluster.finish(10) == []
    assert client.error is None
