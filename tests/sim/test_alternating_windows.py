"""Models of which some layers have windows and others see everything, in virtual time: requests hold all pages of the
latter and of the former those that they still read. Every token is compared, and a page that is read too late makes its
request fail."""

import asyncio
from typing import Any

import pytest

from decode_svc.speculation.speculation import DraftSource
from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.test_windows import TEXT, MostHeld, cluster_with, computed

WINDOW = 16


def alternating(
    most: MostHeld, *, pages: int, local: Local = Local.NEVER, window: int = WINDOW, **more: Any
) -> Cluster:
    return cluster_with(window, most, pages=pages, local=local, full_layers=1, **more)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)])
def test_a_long_text_holds_all_pages_of_one_band_and_few_of_the_other(
    sizes: tuple[int, int], local: Local, ahead: bool
) -> None:
    async def main() -> None:
        most, few = MostHeld(), (WINDOW + 8) // 4 + 3
        cluster = alternating(
            most, pages=650 // 4 + few, local=local, page_tokens=sizes, ahead=ahead, row_seconds=0.00001
        )
        await cluster.start(1, 1)
        cluster.ask(TEXT[:500], Sampling(max_tokens=150))
        assert await cluster.finish(600) == []
        for name in ("decode0", "prefill0") if local is Local.NEVER else ("decode0",):
            size = sizes[name == "decode0"]
            assert 500 // size < most.pages[name] <= 650 // size + few

    run_virtual(main())


def test_negative_control_pages_of_all_layers_do_not_fit() -> None:
    """A pool of equally many bytes: a page of all layers takes those of two."""

    async def main() -> None:
        cluster = cluster_with(0, MostHeld(), pages=(650 // 4 + 9) // 2)
        await cluster.start(1, 1)
        client = cluster.ask(TEXT[:500], Sampling(max_tokens=150))
        client.may_fail = True
        assert await cluster.finish(600) == []
        assert client.error is not None and client.seen == []

    run_virtual(main())


@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4), (6, 4)])
@pytest.mark.parametrize("one_sided", [True, False])
def test_decode_gets_all_pages_of_one_band_and_those_of_the_other_that_it_reads(
    sizes: tuple[int, int], one_sided: bool
) -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=240, page_tokens=sizes, one_sided=one_sided)
        await cluster.start(1, 1)
        for length in (400, 15, 16, 17, 18, 21, 33, 401):
            before = cluster.decode().landings.bytes_landed
            cluster.ask(tuple(token + 50 * length for token in TEXT[:length]), Sampling(max_tokens=30))
            assert await cluster.finish(60) == []
            landed = (cluster.decode().landings.bytes_landed - before) // cluster.decode().pool.shape.page_bytes
            stretches, first = -(-length // sizes[1]), max(0, length - WINDOW) // sizes[1]
            assert landed == stretches + stretches - first
        assert cluster.decode().landings.spans.whole == 8

    run_virtual(main())


@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
def test_a_hit_counts_for_both_bands(local: Local) -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=140, local=local)
        await cluster.start(1, 1)
        worker = cluster.prefill() if local is Local.NEVER else cluster.decode()
        worker.plans = []
        cluster.ask(TEXT[:400], Sampling(max_tokens=1))  # pages behind the window are evicted meanwhile
        assert await cluster.finish(60) == []
        assert computed(worker) == 400
        cluster.ask((*TEXT[:400], 7, 8, 9), Sampling(max_tokens=20))
        assert await cluster.finish(60) == []
        assert computed(worker) <= 400 + 3 + 20
        before = computed(worker)
        cluster.ask((*TEXT[:100], 3, 4), Sampling(max_tokens=1))  # the pages of layers with windows are gone there
        assert await cluster.finish(60) == []
        assert computed(worker) - before >= 102

    run_virtual(main())


def test_decode_keeps_the_pages_that_it_has_and_only_the_others_land() -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=400)
        await cluster.start(1, 1)
        cluster.ask(TEXT[:200], Sampling(max_tokens=20))
        assert await cluster.finish(60) == []
        before = cluster.decode().landings.bytes_landed
        cluster.ask((*TEXT[:200], *range(100)), Sampling(max_tokens=1))
        assert await cluster.finish(60) == []
        landed = (cluster.decode().landings.bytes_landed - before) // cluster.decode().pool.shape.page_bytes
        assert landed == 100 // 4 + WINDOW // 4

    run_virtual(main())


@pytest.mark.parametrize("one_sided", [True, False])
def test_spans_that_are_never_repaired_make_decode_compute_the_whole_text(one_sided: bool) -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=120, one_sided=one_sided)
        await cluster.start(1, 1)
        cluster.fabric.spoil = 4000
        cluster.ask(TEXT[:300], Sampling(max_tokens=30))
        assert await cluster.finish(120) == []
        spans = cluster.decode().landings.spans
        assert spans.admitted == 1 and spans.whole == 0

    run_virtual(main())


def test_a_damaged_span_of_either_band_is_sent_again() -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=120)
        await cluster.start(1, 1)
        cluster.fabric.spoil = 3
        cluster.ask(TEXT[:120], Sampling(max_tokens=30))
        assert await cluster.finish(120) == []
        spans = cluster.decode().landings.spans
        assert spans.whole == 1 and spans.damaged == 3

    run_virtual(main())


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
def test_after_a_death_the_text_goes_on_with_the_same_tokens(victim: str, after: float) -> None:
    async def main() -> None:
        cluster = alternating(MostHeld(), pages=200)
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
        cluster = alternating(
            MostHeld(), window=window, local=Local.AUTO, pages=80, source=source, vocabulary=11, max_batch=6
        )
        await cluster.start(2, 2)
        for number in range(24):
            text = TEXT[: 30 + 17 * (number % 5)]
            cluster.ask((*text, number % 3), Sampling(temperature=1.0, seed=number, max_tokens=25 + number))
            await asyncio.sleep(0.01)
        assert await cluster.finish(240) == []

    run_virtual(main())
