"""Requests of a model with three bands of layers, of which two have windows: what they take, copy and give back."""

import pytest

from decode_svc.growth import Copies, Growth
from decode_svc.handoff.spans import Spans
from decode_svc.request.requests import DecodePhase, DecodeRequest, OpenLanding, PageOwner
from engine.pool.bands import LayerBands
from engine.pool.horizon import GONE
from mesh.messages.hashing import block_hashes
from mesh.messages.jobs import End, Token
from mesh.messages.kv_messages import Commit, Landing
from tests.unit.decode_svc.fakes import PAGE, WRITER, Surroundings

BANDS = LayerBands(6, 3, 1, ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)))


def running(around: Surroundings, stretches: int) -> tuple[DecodeRequest, Growth]:
    one = around.add(1, tokens=stretches * PAGE, phase=DecodePhase.RUNNING)
    one.pages, one.filled = list(around.pages.take(3 * stretches, b"") or ()), len(one.tokens) - 1
    horizon = around.room.horizon
    return one, Growth(around.requests, around.pages, horizon=horizon, numerics="class a", host=around.host)


def test_a_request_takes_the_pages_of_a_stretch_at_once() -> None:
    around = Surroundings(pages=11, bands=BANDS)
    one, growth = running(around, 2)
    one.tokens += [7] * 2 * PAGE
    assert growth.grow(one, 2 * PAGE + 1, []) and len(one.pages) == 9
    assert not growth.grow(one, 3 * PAGE + 1, []) and around.host.starving == [one] and len(one.pages) == 9
    assert growth.spare(one, 4 * PAGE) == 3 * PAGE and around.pages.available == 2


def test_each_shared_page_of_a_stretch_is_copied_before_it_is_written() -> None:
    around = Surroundings(bands=BANDS)
    one, growth = running(around, 2)
    before, copies = list(one.pages), Copies()
    around.pages.share((before[3], before[5]))
    assert growth.grow(one, 2 * PAGE, copies)
    assert copies == [(before[3], one.pages[3]), (before[5], one.pages[5])] and one.pages[:3] == before[:3]
    assert one.pages[4] == before[4] and len({*one.pages, *before}) == 8


def test_pages_behind_windows_go_back_and_those_of_the_other_band_stay() -> None:
    around = Surroundings(pages=18, bands=BANDS)
    one, growth = running(around, 5)
    pages, found = list(one.pages), []
    for filled in range(5 * PAGE):
        one.filled = filled
        back = growth.behind(one)
        around.pages.release(back)
        found += [(filled, page) for page in back]
    assert found == [(9, pages[0]), (9, pages[1]), (13, pages[3]), (13, pages[4]), (17, pages[6]), (17, pages[7])]
    assert one.pages[2::3] == pages[2::3] and one.pages[9:] == pages[9:] and one.gone == 3


def test_full_pages_of_each_band_are_published_and_found_together() -> None:
    around = Surroundings(pages=20, bands=BANDS)
    one, growth = running(around, 3)
    one.filled = 2 * PAGE + 1
    assert growth.publish(one) == range(2) and around.pages.hashes() == tuple(one.hashes)
    again = around.add(2, tokens=3 * PAGE)
    again.tokens[:] = one.tokens
    shared = around.room.take_shared(again)
    assert shared == tuple(one.pages[:6]) and again.hashes == one.hashes
    assert around.room.lacking_here(again, shared) == 3


def test_a_request_needs_all_pages_of_one_band_and_few_of_the_others() -> None:
    around = Surroundings(pages=100, bands=BANDS)
    one = around.add(1, tokens=100, max_tokens=50)
    few = -(-(6 + 8) // PAGE) + 1
    assert around.room.largest_need(one) == -(-150 // PAGE) + 2 * few
    assert around.room.lacking_here(one, ()) == -(-(25 + 2 * few) // 3) * 3
    before, first = around.room.take_shared_before_landing(one)
    assert before == () and first == (100 - 6) // PAGE
    assert sum(around.room.lands(one, before, first)) == 25 + 2 * (25 - first)


@pytest.mark.parametrize("gone", [0, 5])
def test_a_request_waits_if_running_ones_will_need_its_pages_before_they_end(gone: int) -> None:
    """Both texts grow by eight stretches each: in all bands, or once they give pages back, in one of them alone."""
    around = Surroundings(pages=40, bands=BANDS)
    for key in range(900, 908):
        taught = around.add(key, phase=DecodePhase.RUNNING)
        taught.tokens += [7] * 8 * PAGE
        taught.produced[8 * PAGE - 1] = Token(8 * PAGE - 1, 7, end=End.STOP)
        around.room.ended(taught, 1.0)
        del around.requests[key]
    pages = [GONE if index % 3 < 2 and index < 3 * gone else 0 for index in range(24)]
    around.add(
        1, tokens=8 * PAGE, phase=DecodePhase.RUNNING, pages=pages, gone=gone, filled=8 * PAGE - 1, max_tokens=64
    )
    one = around.add(2, tokens=8 * PAGE, max_tokens=64)
    growth = around.room.later_growth(one, 24)
    assert growth > 2 * 3 * 7 if not gone else 2 * 7 < growth < 2 * 3 * 7


def landing_of(around: Surroundings, first_windowed: int) -> tuple[Spans, DecodeRequest, OpenLanding]:
    """A text of four stretches, of which decode has none."""
    one = around.add(1, tokens=4 * PAGE)
    owner, lands = PageOwner(one.ticket, WRITER, "fake", 0), around.room.lands(one, (), first_windowed)
    taken = around.pages.land(sum(lands), owner, b"")
    assert taken is not None
    one.enter(DecodePhase.LANDING)
    one.landing = OpenLanding.begun(owner, lands, taken, (0, first_windowed), layers=2, now=0.0)
    spans = Spans(
        around.pages, around.pool, around.sessions, horizon=around.room.horizon, host=around.host, rules=around.rules
    )
    return spans, one, one.landing


async def test_what_does_not_land_is_neither_written_nor_waited_for() -> None:
    around = Surroundings(bands=BANDS)
    spans, one, landing = landing_of(around, 2)
    gone = [index for index, page in enumerate(landing.pages) if page == GONE]
    assert gone == [0, 1, 3, 4] and landing.landed == (0, 8 * 2) and list(landing.places) == [2, *range(5, 12)]
    assert landing.message == Landing(one.ticket, 0, landing.writable, 2) and len(landing.writable) == 8
    spans.arrived(one, landing, [0, 3], 0, 2, [1, 1])
    assert around.sent_names == [] and landing.landed == (0, 16)
    sums = [around.pool.checksum(page, 0, 2) for page in landing.writable]
    spans.arrived(one, landing, list(landing.places), 0, 2, sums)
    spans.committed(one, landing, Commit(one.ticket, 0, Token(0, 9)))
    assert around.host.running == [one] and one.filled == 4 * PAGE and one.pages == list(landing.pages)
    assert spans.whole == 1 and around.pages.references == 8


@pytest.mark.parametrize("damaged", [2, 11])
async def test_a_page_that_is_never_repaired_costs_the_whole_text_where_pages_are_missing(damaged: int) -> None:
    around = Surroundings(bands=BANDS)
    spans, one, landing = landing_of(around, 1)
    sums = {index: around.pool.checksum(page, 0, 2) for index, page in landing.places.items() if index != damaged}
    spans.arrived(one, landing, list(sums), 0, 2, list(sums.values()))
    spans.admit(one)
    if damaged == 2:
        assert one.pages == [] and one.filled == 0 and around.pages.references == 0
    else:
        assert one.filled == 3 * PAGE and one.pages == list(landing.pages)


def test_a_landing_lacks_what_decode_has_in_each_band() -> None:
    around = Surroundings(pages=40, bands=BANDS)
    one = around.add(1, tokens=6 * PAGE, max_tokens=5)
    taken = around.pages.take(15, b"")
    assert taken is not None
    hashes = block_hashes(one.tokens, page_tokens=PAGE, numerics="class a", salt=b"")
    for index, page in enumerate(taken):
        around.pages.publish(page, hashes[index // 3], index % 3)
    around.pages.release(taken)
    before, first = around.room.take_shared_before_landing(one)
    assert first == (6 * PAGE - 6) // PAGE == 4
    assert before[2::3] == taken[2::3] and before[12:] == taken[12:] and before.count(GONE) == 8
    assert around.pages.references == 7 and around.room.lands(one, before, first) == [True] * 3
