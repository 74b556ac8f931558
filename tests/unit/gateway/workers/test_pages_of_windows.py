"""With windows a text of any length takes few pages: routing and the limits of requests count no more of them."""

from dataclasses import replace

import pytest

from engine.pool.horizon import Horizon
from gateway.routing.costs import Need
from gateway.routing.router import route
from gateway.workers.attached import AttachedWorker
from gateway.workers.worker_figures import NO_ROOM_SECONDS
from mesh.messages.jobs import Tier
from mesh.messages.reports import Load
from tests.unit.gateway.workers.test_shared_cores import table_of, worker

SMALL = Load(free_pages=9, total_pages=9, tokens_per_second=2000.0)


def windowed(tier: Tier, incarnation: int, window: int, load: Load = SMALL) -> AttachedWorker:
    one = worker(tier, incarnation, load, host=f"host{incarnation}")
    one.hello = replace(one.hello, window_tokens=window)
    return one


def test_a_text_takes_the_pages_of_its_last_tokens() -> None:
    assert windowed(Tier.DECODE, 1, 0).pages(2000) == 500
    one = windowed(Tier.DECODE, 1, 16)
    assert (one.pages(8), one.pages(20), one.pages(2000)) == (2, 5, 5)


@pytest.mark.parametrize(("window", "tokens"), [(0, 36), (16, 4096), (36, 36), (500, 36)])
def test_a_pool_that_holds_the_window_holds_a_text_of_any_length(window: int, tokens: int) -> None:
    assert windowed(Tier.DECODE, 1, window).pool_tokens == tokens


def alternating(pages: int, *, windowed: int = 5, full: int = 1) -> AttachedWorker:
    one = worker(Tier.DECODE, 1, Load(free_pages=pages, total_pages=pages), host="host1")
    fields = {"window_tokens": 16, "windowed_bands": windowed, "full_bands": full, "chunk_tokens": 8}
    one.hello = replace(one.hello, **fields)  # type: ignore[arg-type]
    return one


def test_where_some_layers_have_windows_a_text_takes_all_pages_of_the_others() -> None:
    one = alternating(600)
    assert (one.pages(8), one.pages(20), one.pages(2000)) == (6 * 2, 6 * 5, 500 + 5 * 5)


@pytest.mark.parametrize("pages", [6, 29, 42, 60, 61, 600])
@pytest.mark.parametrize(("windowed", "full"), [(5, 1), (1, 1), (3, 2)])
def test_the_longest_text_of_a_pool_is_the_one_that_its_worker_takes(pages: int, windowed: int, full: int) -> None:
    one = alternating(pages, windowed=windowed, full=full)
    horizon, size = Horizon(16, one.hello.page_tokens, windowed + full, full), one.hello.page_tokens
    assert one.pool_tokens == horizon.longest_text(pages, 8), "gateway and worker count alike"
    assert horizon.most_pages(one.pool_tokens, 8) <= pages < horizon.most_pages(one.pool_tokens + size, 8)


def test_a_long_prompt_has_room_in_a_small_pool_and_its_transfer_costs_what_travels() -> None:
    found = []
    for window in (0, 16):
        decode, prefill = windowed(Tier.DECODE, 1, window), windowed(Tier.PREFILL, 2, window)
        prefill.report(replace(SMALL, page_seconds=0.01))
        chosen = route(Need(2000), table_of(decode, prefill))
        assert chosen is not None and chosen.prefill is prefill
        found.append((chosen.cost.room, chosen.cost.transfer))
    assert found == [(NO_ROOM_SECONDS, pytest.approx(5.0)), (0.0, pytest.approx(0.05))]


def test_the_cheapest_route_is_found_with_windows_as_its_parts_add_up() -> None:
    roomy = windowed(Tier.DECODE, 1, 16, replace(SMALL, running=3))
    full = windowed(Tier.DECODE, 2, 16, replace(SMALL, free_pages=4))
    chosen = route(Need(2000), table_of(roomy, full, windowed(Tier.PREFILL, 3, 16)))
    assert chosen is not None and chosen.decode is roomy, "five pages do not fit into four"
