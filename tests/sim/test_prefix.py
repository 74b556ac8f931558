"""What is computed and shipped when a prompt's beginning is known: rows of the plan log and bytes of Landings."""

import asyncio

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from mesh.messages.reports import PrefixChange
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual
from tests.sim.workers import PAGE_TOKENS, SHAPE

TEXT = tuple((slot * 31 + slot // 7) % 50 for slot in range(1024))


def rows(cluster: Cluster, since: int = 0) -> int:
    plans = cluster.prefill().plans
    assert plans is not None
    return sum(plan.rows for plan in plans[since:])


def steps(cluster: Cluster) -> int:
    plans = cluster.prefill().plans
    assert plans is not None
    return len(plans)


@virtual
async def test_a_second_request_with_the_same_1024_tokens_computes_and_ships_only_what_is_new() -> None:
    cluster = await Cluster(1, pages=1024, local=Local.NEVER, chunk_tokens=64).start(1, 1)
    landings, links = cluster.decode().landings, cluster.prefill().links
    cluster.ask((*TEXT, 1, 2, 3, 4, 5, 6, 7))
    assert await cluster.finish() == []
    assert rows(cluster) == 1031
    assert landings.bytes_landed == links.bytes_written == 258 * SHAPE.page_bytes
    before, landed, written = steps(cluster), landings.bytes_landed, links.bytes_written
    new = (9, 8, 7, 6, 5)
    cluster.ask((*TEXT, *new))
    assert await cluster.finish() == []
    assert len(new) <= rows(cluster, before) <= PAGE_TOKENS + len(new)
    assert landings.bytes_landed - landed == 2 * SHAPE.page_bytes  # the five tokens' pages
    assert links.bytes_written - written == 2 * SHAPE.page_bytes


@virtual
async def test_a_fully_cached_prompt_computes_its_last_row_only_and_that_in_a_copy() -> None:
    cluster = await Cluster(1, pages=1024, local=Local.NEVER, chunk_tokens=64).start(1, 1)
    first = cluster.ask(TEXT)
    assert await cluster.finish() == []
    prefill, pool = cluster.prefill(), cluster.processes["prefill0"].pool
    shared = prefill.pages.match(prefill.pages.hashes())
    bytes_before = [bytes(pool.view(page, 0, SHAPE.layers)) for page in shared]
    prefill.pages.release(shared)
    before, landed = steps(cluster), cluster.decode().landings.bytes_landed
    second = cluster.ask(TEXT)
    assert await cluster.finish() == []  # also: no step writes a page that others can find
    assert prefill.plans is not None and len(prefill.plans) == before + 1
    (piece,), ((source, target),) = prefill.plans[before].pieces, prefill.plans[before].copies
    assert (piece.start, len(piece.tokens), piece.sampled) == (1023, 1, 1)
    assert source in shared and target not in shared and piece.pages[-1] == target
    assert [bytes(pool.view(page, 0, SHAPE.layers)) for page in shared] == bytes_before
    assert second.seen == first.seen
    assert cluster.decode().landings.bytes_landed == landed, "decode had every page"


@virtual
async def test_a_fully_cached_prompt_that_fills_the_whole_prefill_pool_is_still_served() -> None:
    """There is no page for a copy of the last one: it is computed again in its own place."""
    cluster = await Cluster(1, pages=64, prefill_pages=6, local=Local.NEVER).start(1, 1)
    for _ in range(2):
        client = cluster.ask(tuple(range(24)))
        assert await cluster.finish(10) == []
        assert client.error is None


@virtual
async def test_pages_that_prefill_has_and_decode_lacks_are_shipped_without_being_computed() -> None:
    cluster = await Cluster(1, pages=1024, local=Local.NEVER, chunk_tokens=64).start(1, 1)
    cluster.ask(TEXT)
    assert await cluster.finish() == []
    before = steps(cluster)
    await cluster.restart("decode0")
    await cluster.until(lambda: len(cluster.gateway.workers) == 2)
    cluster.ask(TEXT)
    assert await cluster.finish() == []
    assert rows(cluster, before) == 1
    assert cluster.decode().landings.bytes_landed == 256 * SHAPE.page_bytes


@virtual
async def test_decode_computes_a_fully_cached_local_prompt_in_a_copy_too() -> None:
    cluster = await Cluster(1, pages=64, local=Local.ALWAYS).start(0, 1)
    for _ in range(2):
        cluster.ask(tuple(range(24)), Sampling(max_tokens=5))
        assert await cluster.finish() == []
    plans = cluster.decode().plans
    assert plans is not None
    (plan,) = [plan for plan in plans if plan.copies]
    assert (plan.pieces[0].start, len(plan.pieces[0].tokens)) == (23, 1)


@virtual
async def test_after_a_gap_in_prefix_changes_the_gateway_asks_for_a_snapshot() -> None:
    cluster = await Cluster(1, local=Local.NEVER).start(1, 1)
    known = {worker.hello.address: worker for worker in cluster.gateway.workers}["prefill0"]
    lost: list[int] = []

    def forget(source: str, target: str, message: object) -> bool:
        if isinstance(message, PrefixChange) and source == "prefill0" and not lost:
            lost.append(message.sequence)
            known.prefix_sequence -= 1  # as if the one before had not come
        return False

    cluster.network.hold(forget)
    cluster.ask(tuple(range(12)))
    assert await cluster.finish() == []
    assert lost == [1]
    assert known.prefix == set(cluster.prefill().pages.hashes()) != set()
    names = [what for _, source, target, what in cluster.network.log if (source, target) == ("gateway", "prefill0")]
    assert names.count("Snapshot") == 1
    cluster.ask(tuple(range(20, 32)))
    assert await cluster.finish() == []
    await asyncio.sleep(0.1)
    assert known.prefix == set(cluster.prefill().pages.hashes())
