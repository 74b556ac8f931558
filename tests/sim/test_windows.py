"""Models whose layers all have windows, or all but the last, in virtual time: requests hold the pages that they still
read and no others, whatever their length. Every token is compared, and a page that is read too late makes its request
fail. tests/sim/test_alternating_windows.py has what holds only where some layers see everything."""

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
from tests.sim.loop import virtual

WINDOW, PAGES = 16, 12
both_kinds = pytest.mark.parametrize("full_layers", [0, 1])  # the last layers, which see everything
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
@virtual
async def test_a_text_of_thousands_of_tokens_runs_in_a_pool_of_a_few_pages(
    sizes: tuple[int, int], local: Local, ahead: bool
) -> None:
    most = MostHeld()
    cluster = cluster_with(WINDOW, most, local=local, page_tokens=sizes, ahead=ahead, row_seconds=0.00001)
    await cluster.start(1, 1)
    cluster.ask(TEXT[:2500], Sampling(max_tokens=150))
    assert await cluster.finish(600) == []
    assert max(most.pages.values()) <= (WINDOW + 8) // 4 + 3


@virtual
async def test_negative_control_without_windows_the_same_text_does_not_fit() -> None:
    cluster = await cluster_with(0, MostHeld()).start(1, 1)
    client = cluster.ask(TEXT[:2500], Sampling(max_tokens=150))
    client.may_fail = True
    assert await cluster.finish(600) == []
    assert client.error is not None and client.seen == []


@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4), (6, 4)])
@pytest.mark.parametrize("one_sided", [True, False])
@both_kinds
@virtual
async def test_decode_gets_only_the_pages_that_it_reads(
    full_layers: int, sizes: tuple[int, int], one_sided: bool
) -> None:
    more = {"page_tokens": sizes, "one_sided": one_sided, "full_layers": full_layers}
    cluster = await cluster_with(WINDOW, MostHeld(), pages=(32, 240)[full_layers], **more).start(1, 1)
    for length in (400, 15, 16, 17, 18, 21, 33, 401):
        before = cluster.decode().landings.bytes_landed
        cluster.ask(tuple(token + 50 * length for token in TEXT[:length]), Sampling(max_tokens=30))
        assert await cluster.finish(60) == []
        landed = (cluster.decode().landings.bytes_landed - before) // cluster.decode().pool.shape.page_bytes
        stretches = -(-length // sizes[1])
        first = max(0, length - WINDOW) // sizes[1]  # the last row of the prompt reads it
        assert landed == stretches * full_layers + stretches - first
    assert cluster.decode().landings.spans.whole == 8


def computed(worker: PrefillWorker | DecodeWorker) -> int:
    return sum(plan.rows for plan in worker.plans or ())


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@both_kinds
@virtual
async def test_a_hit_needs_only_the_pages_before_its_end(full_layers: int, local: Local) -> None:
    cluster = cluster_with(WINDOW, MostHeld(), local=local, pages=(16, 140)[full_layers], full_layers=full_layers)
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
    cluster.ask((*TEXT[:100], 3, 4), Sampling(max_tokens=1))  # the pages of windows there are gone
    assert await cluster.finish(60) == []
    assert computed(worker) - computed_before >= 102


@pytest.mark.parametrize("one_sided", [True, False])
@both_kinds
@virtual
async def test_spans_that_are_never_repaired_make_decode_compute_the_whole_text(
    full_layers: int, one_sided: bool
) -> None:
    more = {"one_sided": one_sided, "full_layers": full_layers}
    cluster = await cluster_with(WINDOW, MostHeld(), pages=(PAGES, 120)[full_layers], **more).start(1, 1)
    cluster.fabric.spoil = 4000
    cluster.ask(TEXT[:300], Sampling(max_tokens=30))
    assert await cluster.finish(120) == []
    spans = cluster.decode().landings.spans
    assert spans.admitted == 1 and spans.whole == 0


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
@both_kinds
@virtual
async def test_after_a_death_the_text_goes_on_with_the_same_tokens(full_layers: int, victim: str, after: float) -> None:
    cluster = await cluster_with(WINDOW, MostHeld(), pages=(24, 200)[full_layers], full_layers=full_layers).start(2, 2)
    for number in range(4):
        cluster.ask(tuple(token + 50 * number for token in TEXT[:200]), Sampling(max_tokens=80))
    await asyncio.sleep(after)
    await cluster.kill(victim)
    assert await cluster.finish(120) == []


@pytest.mark.parametrize("source", [DraftSource.LOOKUP, DraftSource.OFF])
@pytest.mark.parametrize("window", [2, 7, 16, 40])
@pytest.mark.parametrize(("full_layers", "pages", "max_batch"), [(0, 24, 64), (1, 80, 6)])
@virtual
async def test_many_requests_share_a_small_pool(
    full_layers: int, pages: int, max_batch: int, window: int, source: DraftSource
) -> None:
    more = {"source": source, "vocabulary": 11, "full_layers": full_layers, "max_batch": max_batch}
    cluster = await cluster_with(window, MostHeld(), local=Local.AUTO, pages=pages, **more).start(2, 2)
    for number in range(24):
        text = TEXT[: 30 + 17 * (number % 5)]
        cluster.ask((*text, number % 3), Sampling(temperature=1.0, seed=number, max_tokens=25 + number))
        await asyncio.sleep(0.01)
    assert await cluster.finish(240) == []
