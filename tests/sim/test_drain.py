"""A worker that drains takes nothing new and finishes what it has; clients notice nothing."""

import asyncio

from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual


@virtual
async def test_a_draining_decode_worker_finishes_and_new_requests_go_to_the_other() -> None:
    cluster = await Cluster(3).start(1, 2)
    running = cluster.ask(tuple(range(10)), Sampling(max_tokens=40))
    await cluster.until(lambda: len(running.seen) > 3)
    busy = next(p for p in cluster.processes.values() if p.name.startswith("decode") and p.worker.busy)
    busy.worker.attachments.drain()
    await asyncio.sleep(0.05)
    steps = len(busy.worker.plans or [])
    late = [cluster.ask(tuple(range(i, i + 9))) for i in range(6)]
    assert await cluster.finish() == []
    assert running.error is None and all(client.error is None for client in late)
    keys = {piece.key for plan in (busy.worker.plans or [])[steps:] for piece in plan.pieces}
    assert len(keys) == 1, "only the request it had"
    assert not busy.worker.busy


@virtual
async def test_usage_and_timings_say_what_the_prompt_took() -> None:
    cluster = await Cluster(4).start(1, 1)
    prompt = tuple(range(16))
    first = cluster.ask(prompt)
    await cluster.until(lambda: first.ended)
    again = cluster.ask(prompt)
    assert await cluster.finish() == []
    assert first.handle.timings.cached_tokens == 0
    assert again.handle.timings.cached_tokens >= 12
    seconds = first.handle.timings
    assert seconds.queue_seconds is not None and seconds.prefill_seconds is not None
    assert 0 < seconds.prefill_seconds < seconds.first_token_seconds
    assert seconds.queue_seconds + seconds.prefill_seconds <= seconds.first_token_seconds
