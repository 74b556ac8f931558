"""Workers, gateways and clients that die, stall or go away: what the client sees, and when."""

import asyncio
from random import Random

import pytest

from gateway.routing.router import Local
from mesh.errors import Cancelled, DeadlineExceeded, Unavailable, WorkersDied
from mesh.messages.jobs import Sampling, Tier
from mesh.messages.kv_messages import Commit
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual

PROMPT = tuple(range(10))  # three pages


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_a_first_token_that_prefill_left_behind_is_not_said_twice(seed: int) -> None:
    """Prefill dies with every span landed and Commit on its way; the gateway's Resume meets decode's own last row."""
    cluster = await Cluster(seed).start(1, 1)
    cluster.network.hold(lambda source, target, message: isinstance(message, Commit))
    client = cluster.ask(PROMPT)
    await cluster.until(lambda: len(client.seen) == 1)
    await asyncio.sleep(0.05)
    await cluster.kill("prefill0")
    assert await cluster.finish() == []
    assert client.error is None


@virtual
async def test_a_request_that_waits_for_a_page_goes_on_when_the_proof_comes() -> None:
    """Nothing else happens meanwhile: the Quiet alone must wake decode."""
    cluster = await Cluster(1, pages=6, may_kill=False).start(1, 1)
    other = cluster.ask(tuple(range(30, 40)))
    ticket = cluster.ticket(other).pack()
    writes = cluster.fabric.hold(lambda write: write.ticket == ticket)
    await cluster.until(lambda: len(cluster.fabric.waiting) == 6)
    long = cluster.ask(PROMPT, Sampling(max_tokens=14))  # six pages in the end
    await asyncio.sleep(0.1)
    other.handle.cancel()
    await asyncio.sleep(0.3)
    assert cluster.decode().pages.counts().quarantined == 3 and 1 < len(long.seen) < 14
    writes()
    await asyncio.sleep(0.1)
    assert len(long.seen) == 14
    assert await cluster.finish() == []


@pytest.mark.parametrize("one_sided", [True, False])
@virtual
async def test_decode_dies_and_another_decode_worker_goes_on_with_the_same_tokens(one_sided: bool) -> None:
    cluster = await Cluster(1, one_sided=one_sided).start(1, 2)
    client = cluster.ask(PROMPT, Sampling(max_tokens=20))
    assert await cluster.until(lambda: len(client.seen) == 7)
    serving = next(name for name in ("decode0", "decode1") if cluster.processes[name].worker.requests)
    await cluster.kill(serving)
    assert await cluster.finish() == []
    assert client.handle.timings.attempts == 2 and len(client.seen) == 20


@virtual
async def test_a_request_whose_workers_died_three_times_ends_with_an_error_of_its_own() -> None:
    cluster = await Cluster(1).start(1, 1)
    client = cluster.ask(PROMPT, Sampling(max_tokens=40))
    client.may_fail = True
    for death in range(1, 4):
        assert not client.ended
        assert await cluster.until(lambda d=death: bool(cluster.decode().requests) and len(client.seen) > 2 * d)
        await cluster.restart("decode0")
    assert await cluster.until(lambda: client.ended, 5)
    assert isinstance(client.error, WorkersDied) and "3 workers" in str(client.error)
    assert await cluster.finish() == []


@virtual
async def test_two_deaths_are_survived() -> None:
    cluster = await Cluster(1).start(1, 1)
    client = cluster.ask(PROMPT, Sampling(max_tokens=40))
    for death in range(1, 3):
        assert await cluster.until(lambda d=death: bool(cluster.decode().requests) and len(client.seen) > 2 * d)
        await cluster.restart("decode0")
    assert await cluster.finish() == []
    assert client.handle.timings.attempts >= 3


@virtual
async def test_a_deadline_ends_the_request_on_time_and_frees_everything() -> None:
    cluster = await Cluster(1).start(1, 1)
    loop = asyncio.get_running_loop()
    client = cluster.ask(PROMPT, Sampling(max_tokens=60), 0.05)
    client.may_fail = True
    began = loop.time()
    assert await cluster.until(lambda: client.ended)
    assert isinstance(client.error, DeadlineExceeded) and "deadline passed" in str(client.error)
    assert 0.05 <= loop.time() - began < 0.06 and 0 < len(client.seen) < 60
    assert await cluster.finish() == []


@virtual
async def test_a_request_waits_for_a_worker_as_long_as_the_gateway_has_patience() -> None:
    cluster = await Cluster(1, patience_seconds=3.0).start(0, 0)
    impatient = cluster.ask(PROMPT)
    impatient.may_fail = True
    await asyncio.sleep(2)
    served = cluster.ask(PROMPT)
    assert await cluster.until(lambda: impatient.ended, 1.1)
    assert isinstance(impatient.error, Unavailable) and not impatient.seen
    await cluster.add(Tier.DECODE, "decode0")
    assert await cluster.finish() == []
    assert len(served.seen) == 6


@virtual
async def test_patience_counts_only_while_no_worker_has_the_request() -> None:
    cluster = await Cluster(1, patience_seconds=0.05).start(1, 1)
    cluster.ask(PROMPT, Sampling(max_tokens=60))
    assert await cluster.finish() == []


@virtual
async def test_after_a_gateway_restart_the_client_goes_on_by_sending_what_it_has() -> None:
    cluster = await Cluster(1).start(1, 1)
    sampling = Sampling(max_tokens=30, temperature=1.0, seed=7)
    client = cluster.ask(PROMPT, sampling)
    assert await cluster.until(lambda: len(client.seen) == 9)
    await cluster.restart_gateway(Random(99))
    assert client.task is not None
    client.task.cancel()
    cluster.clients.remove(client)
    assert await cluster.until(lambda: len(cluster.gateway.workers) == 2, 2)
    assert not cluster.decode().requests and not cluster.prefill().prompts, "its workers dropped what it had asked"
    again = cluster.ask(PROMPT, sampling, emitted=tuple(client.seen))
    assert await cluster.finish() == []
    assert again.positions == list(range(9, 30))


@pytest.mark.parametrize("one_sided", [True, False])
@virtual
async def test_a_cancel_at_any_moment_leaves_no_page_behind(one_sided: bool) -> None:
    random = Random(3)
    cluster = await Cluster(3, one_sided=one_sided, pages=24, local=Local.NEVER).start(1, 1)
    for number in range(60):
        client = cluster.ask(tuple(random.randrange(50) for _ in range(20)), Sampling(max_tokens=8))
        asyncio.get_running_loop().call_later(number / 60 * 0.06, client.handle.cancel)
        await asyncio.sleep(random.expovariate(1 / 0.02))
    assert await cluster.finish() == []
    cancelled = [client for client in cluster.clients if client.error]
    assert all(isinstance(client.error, Cancelled) for client in cancelled)
    assert any(not client.seen for client in cancelled) and any(len(client.seen) > 2 for client in cancelled)
