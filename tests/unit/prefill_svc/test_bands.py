"""Prompts of a model with three bands of layers, of which two have windows: the pages that they hold and push."""

from random import Random

import pytest

from engine.pool.bands import LayerBands, bands_of
from engine.pool.horizon import GONE, Horizon
from engine.pool.pages import PagePool
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Landing
from mesh.messages.page_shape import PageShape
from prefill_svc.message_checks import landing_problem, targets_of
from prefill_svc.pages import PrefillPages, PromptPages
from tests.unit.prefill_svc.parts import ManualWriter, of_size

BANDS = bands_of((6, 6, 0) * 2)
TICKET, CHUNK = Ticket(1, 1, bytes(16)), 8


def pages_of(pool: PagePool) -> PrefillPages:
    return PrefillPages(pool, horizon=Horizon.of(pool.bands, 4), chunk_tokens=CHUNK, numerics="a")


def test_a_prompt_keeps_one_band_whole_and_of_the_others_what_it_reads_or_sends() -> None:
    pool = PagePool(100 + 2 * 5, bands=BANDS)
    pages = pages_of(pool)
    own = pages.take(tuple(range(400)), b"", 392)
    assert own is not None and own.promised == pages.needed(400) == 110 and pages.available == 0
    for done in range(0, 400, CHUNK):
        pages.cover(own, done, done + CHUNK)
        assert len(own.held) + own.promised == 110 and len(own.pages) == 3 * (done + CHUNK) // 4
        pages.publish(own, done + CHUNK)
    assert own.pages[0::3][:96] == (GONE,) * 96 and GONE not in own.pages[2::3]
    pages.release(own)
    assert pool.counts().in_use == 0 and pages.available == 110 and len(pool.hashes()) == 100


def test_a_prompt_that_the_cache_has_whole_copies_the_last_page_of_each_band() -> None:
    pool = PagePool(40, bands=BANDS)
    pages, text = pages_of(pool), tuple(range(32))
    first = pages.take(text, b"", 24)
    assert first is not None
    for done in range(0, 32, CHUNK):
        pages.cover(first, done, done + CHUNK)
        pages.publish(first, done + CHUNK)
    last = first.pages[-3:]
    pages.release(first)
    own = pages.take(text, b"", 24)
    assert own is not None and own.cached == 31 and own.ready == 28
    assert [source for source, _ in own.copies] == list(last)
    assert own.pages[-3:] == tuple(copy for _, copy in own.copies)
    pages.cover(own, 31, 32)
    pages.copied(own)
    pages.release(own)
    assert pool.counts().in_use == 0


@pytest.mark.parametrize("bands", [BANDS, LayerBands(6), bands_of((3, 0)), LayerBands()])
@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_share_pages_never_lack_one_that_was_promised(bands: LayerBands, seed: int) -> None:
    random = Random(seed)
    pool = PagePool(60 * bands.count, bands=bands)
    pages, running, begun = pages_of(pool), list[tuple[PromptPages, int, int]](), 0
    for _ in range(1500):
        if random.random() < 0.3:
            text = (
                *range(random.choice((0, 8, 30, 60))),
                *(random.randrange(99) for _ in range(random.randint(1, 90))),
            )
            own = pages.take(text, b"", random.randint(0, len(text)))
            if own is not None:
                running.append((own, own.cached, len(text)))
                begun += 1
        elif running:
            own, done, total = running.pop(random.randrange(len(running)))
            stop = min(total, done + CHUNK)
            pages.cover(own, done, stop)
            pages.copied(own)
            pages.publish(own, stop)
            if stop < total and random.random() < 0.95:
                running.append((own, stop, total))
            else:
                pages.release(own)
        held = [page for own, _, _ in running for page in own.held]
        assert len(held) == pool.references and pages.available >= 0
    assert begun > 20


def landing(first_page: int, pages: int, first_windowed: int) -> Landing:
    return Landing(TICKET, first_page, tuple(range(pages)), first_windowed)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (landing(3, 5, 3), ""),
        (landing(0, 12, 0), ""),
        (landing(12, 0, 0), ""),
        (landing(1, 11, 0), "Landing.first_page, first_windowed: are 1 and 0"),
        (landing(0, 4, 5), "Landing.first_page, first_windowed: are 0 and 5"),
        (landing(3, 9, 3), "Landing.pages: are 9 from page 3 on, a prompt of 16 tokens has 5"),
        (landing(15, 0, 0), "Landing.pages: are 0 from page 15 on"),
    ],
)
def test_a_landing_names_the_pages_of_each_band(named: Landing, why: str) -> None:
    found = landing_problem(named, 16, ManualWriter(of_size(4)), BANDS)
    assert found.startswith(why) if why else found == ""


def test_the_pages_of_a_landing_go_to_the_stretches_and_bands_that_land() -> None:
    shape: PageShape = of_size(4)
    assert targets_of(landing(3, 5, 3), 16, shape, BANDS) == {5: 0, 8: 1, 9: 2, 10: 3, 11: 4}
