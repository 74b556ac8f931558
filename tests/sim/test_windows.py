"""Models whose layers all have windows, in virtual time: requests hold the pages that they still read and no others,
whatever their length. Every token is compared, and a page that is read too late makes its request fail."""

import asyncio
from typing import Any

import pytest

from decode_svc.speculation.speculation import DraftSource
from decode_svc.worker import DecodeWorker
from engine.step.plan import Plan
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from prefill_svc.worker import PrefillWorker
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual

WINDOW, PAGES = 16, 12
TEXT = tuple((slot * 31 + slot // 7) % 50 for slot in range(4000))


class MostHeld:
    """The most pages in use or landing, of each worker, as of every step of any of them."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.pages: dict[str, int] = {}

    def look(self, plan: Plan) -> None:
        assert self.cluster is not None
        for process in self.cluster.processes.values():
            counts = process.worker.pages.counts()
            held = counts.in_use + counts.landing
            self.pages[process.name] = max(held, self.pages.get(process.name, 0))
            assert counts.total == process.worker.pages.pages


def cluster_with(
    window: int, most: MostHeld, *, pages: int = PAGES, local: Local = Local.NEVER, **more: Any
) -> Cluster:
    most.cluster = Cluster(1, pages=pages, prefill_pages=pages, local=local, window=window, on_plan=most.look, **more)
    return most.cluster


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)])
def test_a_text_of_thousands_of_tokens_runs_in_a_pool_of_a_few_pages(
    sizes: tuple[int, int], local: Local, ahead: bool
) -> None:
    async def main() -> None:
        most = MostHeld()
        cluster = cluster_with(WINDOW, most, local=local, page_tokens=sizes, ahead=ahead, row_seconds=0.00001)
        await cluster.start(1, 1)
        cluster.ask(TEXT[:2500], Sampling(max_tokens=150))
        assert await cluster.finish(600) == []
        assert max(most.pages.values()) <= (WINDOW + 8) // 4 + 3

    run_virtual(main())


def test_negative_control_without_windows_the_same_text_does_not_fit() -> None:
    async def main() -> None:
        cluster = cluster_with(0, MostHeld())
        await cluster.start(1, 1)
        client = cluster.ask(TEXT[:2500], Sampling(max_tokens=150))
        client.may_fail = True
        assert await cluster.finish(600) == []
        assert client.error is not None and client.seen == []

    run_virtual(main())


@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4), (6, 4)])
@pytest.mark.parametrize("one_sided", [True, False])
def test_decode_gets_only_the_pages_that_it_reads(sizes: tuple[int, int], one_sided: bool) -> None:
    async def main() -> None:
        most = MostHeld()
        cluster = cluster_with(WINDOW, most, pages=32, page_tokens=sizes, one_sided=one_sided)
        await cluster.start(1, 1)
        for length in (400, 15, 16, 17, 18, 21, 33, 401):
            before = cluster.decode().landings.bytes_landed
            cluster.ask(tuple(token + 50 * length for token in TEXT[:length]), Sampling(max_tokens=30))
            assert await cluster.finish(60) == []
            landed = (cluster.decode().landings.bytes_landed - before) // cluster.decode().pool.shape.page_bytes
            first = max(0, length - WINDOW) // sizes[1]  # the last row of the prompt reads it
            assert landed == -(-length // sizes[1]) - first
        assert cluster.decode().landings.spans.whole == 8

    run_virtual(main())


def computed(worker: PrefillWorker | DecodeWorker) -> int:
    return sum(plan.rows for plan in worker.plans or ())


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
def test_a_hit_needs_only_the_pages_before_its_end(local: Local) -> None:
    async def main() -> None:
        cluster = cluster_with(WINDOW, MostHeld(), local=local, pages=16)
        await cluster.start(1, 1)
        worker = cluster.prefill() if local is Local.NEVER else cluster.decode()
        worker.plans = []
        cluster.ask(TEXT[:400], Sampling(max_tokens=1))  # its first pages are evicted meanwhile
        assert await cluster.finish(60) == []
        assert computed(worker) == 400
        cluster.ask((*TEXT[:400], 7, 8, 9), Sampling(max_tokens=20))
        assert await cluster.finish(60) == []
        assert computed(worker) <= 400 + 3 + 20
        computed_before = computed(worker)
        cluster.ask((*TEXT[:100], 3, 4), Sampling(max_tokens=1))  # the pages before token 100 are gone
        assert await cluster.finish(60) == []
        assert computed(worker) - computed_before >= 102

    run_virtual(main())


@pytest.mark.parametrize("one_sided", [True, False])
def test_spans_that_are_never_repaired_make_decode_compute_the_whole_text(one_sided: bool) -> None:
    async def main() -> None:
        cluster = cluster_with(WINDOW, MostHeld(), one_sided=one_sided)
        await cluster.start(1, 1)
        cluster.fabric.spoil = 1000
        cluster.ask(TEXT[:300], Sampling(max_tokens=30))
        assert await cluster.finish(120) == []
        spans = cluster.decode().landings.spans
        assert spans.admitted == 1 and spans.whole == 0

    run_virtual(main())


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
def test_after_a_death_the_text_goes_on_with_the_same_tokens(victim: str, after: float) -> None:
    async def main() -> None:
        cluster = cluster_with(WINDOW, MostHeld(), pages=24)
        await cluster.start(2, 2)
        for number in range(4):
            cluster.ask(tuple(token + 50 * number for token in TEXT[:200]), Sampling(max_tokens=80))
        await asyncio.sleep(after)
        await cluster.kill(victim)
        assert await cluster.finish(120) == []

    run_virtual(main())


@pytest.mark.parametrize("source", [DraftSource.LOOKUP, DraftSource.OFF])
@pytest.mark.parametrize("window", [2, 7, 16, 40])
def test_many_requests_share_a_small_pool(window: int, source: DraftSource) -> None:
    async def main() -> None:
        cluster = cluster_with(window, MostHeld(), local=Local.AUTO, pages=24, source=source, vocabulary=11)
        await cluster.start(2, 2)
        for number in range(24):
            text = TEXT[: 30 + 17 * (number % 5)]
            cluster.ask((*text, number % 3), Sampling(temperature=1.0, seed=number, max_tokens=25 + number))
            await asyncio.sleep(0.01)
        assert await cluster.finish(240) == []

    run_virtual(main())
