"""Models of which some layers have windows and others see everything, in virtual time: requests hold all pages of the
latter and of the former those that they still read. tests/sim/test_windows.py has what both kinds of models share."""

from typing import Any

import pytest

from gateway.routing.router import Local
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import virtual
from tests.sim.test_windows import TEXT, WINDOW, MostHeld, cluster_with


def alternating(most: MostHeld, **more: Any) -> Cluster:
    return cluster_with(WINDOW, most, full_layers=1, **more)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("local", [Local.NEVER, Local.ALWAYS])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)])
@virtual
async def test_a_long_text_holds_all_pages_of_one_band_and_few_of_the_other(
    sizes: tuple[int, int], local: Local, ahead: bool
) -> None:
    most, few = MostHeld(), (WINDOW + 8) // 4 + 3
    cluster = alternating(most, pages=650 // 4 + few, local=local, page_tokens=sizes, ahead=ahead, row_seconds=0.00001)
    await cluster.start(1, 1)
    cluster.ask(TEXT[:500], Sampling(max_tokens=150))
    assert await cluster.finish(600) == []
    for name in ("decode0", "prefill0") if local is Local.NEVER else ("decode0",):
        size = sizes[name == "decode0"]
        assert 500 // size < most.pages[name] <= 650 // size + few


@virtual
async def test_negative_control_pages_of_all_layers_do_not_fit() -> None:
    """A pool of equally many bytes: a page of all layers takes those of two."""
    cluster = await cluster_with(0, MostHeld(), pages=(650 // 4 + 9) // 2).start(1, 1)
    client = cluster.ask(TEXT[:500], Sampling(max_tokens=150))
    client.may_fail = True
    assert await cluster.finish(600) == []
    assert client.error is not None and client.seen == []


@virtual
async def test_decode_keeps_the_pages_that_it_has_and_only_the_others_land() -> None:
    cluster = await alternating(MostHeld(), pages=400).start(1, 1)
    cluster.ask(TEXT[:200], Sampling(max_tokens=20))
    assert await cluster.finish(60) == []
    before = cluster.decode().landings.bytes_landed
    cluster.ask((*TEXT[:200], *range(100)), Sampling(max_tokens=1))
    assert await cluster.finish(60) == []
    landed = (cluster.decode().landings.bytes_landed - before) // cluster.decode().pool.shape.page_bytes
    assert landed == 100 // 4 + WINDOW // 4


@virtual
async def test_a_damaged_span_of_either_band_is_sent_again() -> None:
    cluster = await alternating(MostHeld(), pages=120).start(1, 1)
    cluster.fabric.spoil = 3
    cluster.ask(TEXT[:120], Sampling(max_tokens=30))
    assert await cluster.finish(120) == []
    spans = cluster.decode().landings.spans
    assert spans.whole == 1 and spans.damaged == 3
