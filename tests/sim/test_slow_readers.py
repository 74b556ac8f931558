"""A reader that is behind pauses its request: what is held stays bounded, others get its place, no token changes."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.unread import BEHIND_SECONDS, TOKEN_BYTES
from mesh.errors import Cancelled
from mesh.messages.jobs import Sampling
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual

LIMIT = 16 * TOKEN_BYTES
LONG = Sampling(max_tokens=120)


def gate() -> tuple[asyncio.Event, Callable[[], Awaitable[None]]]:
    """A client that reads while the event is set."""
    opened = asyncio.Event()

    async def wait() -> None:
        await opened.wait()

    return opened, wait


def request_of(cluster: Cluster, client: SimClient) -> GatewayRequest:
    return next(r for r in cluster.gateway.sequencer.requests.values() if r.choice is client.spec)


@virtual
async def test_a_reader_that_stops_pauses_its_request_and_gets_the_same_tokens_afterwards() -> None:
    cluster = await Cluster(1, reader_kib=LIMIT // 1024).start(1, 1)
    opened, reads = gate()
    slow = cluster.ask(tuple(range(10)), LONG, reads=reads)
    request = request_of(cluster, slow)
    assert await cluster.until(lambda: request.phase is RequestPhase.PAUSED)
    assert await cluster.until(lambda: not cluster.decode().busy and not cluster.prefill().busy)
    held = request.unread.bytes
    await asyncio.sleep(20.0)
    assert request.unread.bytes == held, "nothing is generated for a reader that is behind"
    opened.set()
    assert await cluster.finish() == []
    assert slow.error is None and len(slow.seen) == 120
    assert slow.handle.timings.attempts > 1


@virtual
async def test_a_paused_request_gives_its_place_in_the_batch_away() -> None:
    cluster = await Cluster(2, reader_kib=LIMIT // 1024, max_batch=1).start(1, 1)
    _, reads = gate()
    slow = cluster.ask(tuple(range(10)), LONG, reads=reads)
    quick = cluster.ask(tuple(range(3, 12)))
    assert await cluster.until(lambda: quick.ended, 30.0), "with one place, it waits for the reader of the other"
    assert quick.error is None and not slow.ended
    slow.handle.cancel()
    assert slow.handle.timings.total_seconds > 0
    assert not cluster.gateway.sequencer.requests


@virtual
async def test_a_burst_is_no_slow_reader() -> None:
    cluster = await Cluster(3, reader_kib=LIMIT // 1024).start(1, 1)

    async def pauses_a_little() -> None:
        if len(client.seen) % 40 == 0:
            await asyncio.sleep(BEHIND_SECONDS / 4)

    client = cluster.ask(tuple(range(10)), LONG, reads=pauses_a_little)
    assert await cluster.finish() == []
    assert client.handle.timings.attempts == 1


@pytest.mark.parametrize("seed", range(4))
def test_slow_readers_and_dying_workers_change_no_token(seed: int) -> None:
    async def main() -> int:
        random, cluster = Random(seed), Cluster(seed, reader_kib=LIMIT // 1024, max_batch=3)
        await cluster.start(2, 2)

        async def reads() -> None:
            await asyncio.sleep(random.choice((0.0, 0.0, 0.0, 0.01, 0.5)))

        clients = [
            cluster.ask(tuple(range(n, n + random.randrange(3, 12))), Sampling(max_tokens=60, seed=n), reads=reads)
            for n in range(6)
        ]
        for name in ("decode0", "prefill1", "decode1"):
            await asyncio.sleep(random.uniform(0.1, 2.0))
            await cluster.restart(name)
        assert await cluster.finish(600.0) == []
        assert all(client.error is None for client in clients)
        return sum(client.handle.timings.attempts for client in clients)

    assert run_virtual(main()) > 6, "no request was ever paused or moved"


@virtual
async def test_a_reader_that_leaves_while_its_request_is_paused_ends_it() -> None:
    cluster = await Cluster(5, reader_kib=LIMIT // 1024).start(1, 1)
    opened, reads = gate()
    slow = cluster.ask(tuple(range(10)), LONG, reads=reads)
    request = request_of(cluster, slow)
    assert await cluster.until(lambda: request.phase is RequestPhase.PAUSED)
    slow.handle.cancel()
    opened.set()
    assert await cluster.until(lambda: slow.ended)
    assert isinstance(slow.error, Cancelled) and request.unread.bytes == 0
    assert len(slow.seen) == 1, "what was held is not sent to a client that is gone"
    assert await cluster.finish() == []
