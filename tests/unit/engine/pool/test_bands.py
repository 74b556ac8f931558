"""How a model's layers are cut into bands, and which pages of a text each band keeps."""

from itertools import chain
from random import Random

import pytest

from engine.pool.bands import ONE_BAND, LayerBands, bands_of
from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool

NOBODY = b""
GEMMA_3 = (9, 9, 9, 9, 9, 0)
PATTERNS = [GEMMA_3 * 2, (9, 0) * 13, (9, 9, 9, 0) * 8, (0, *(9,) * 6)]
PADDED = [(*GEMMA_3 * 5, 9, 9, 9, 9), (*GEMMA_3 * 4, 9, 9), (*GEMMA_3 * 10, 9, 9)]  # 34, 26, 62 layers


@pytest.mark.parametrize("windows", [(), (0, 0, 0), (7, 7), (5, 9, 7)])
def test_layers_of_one_kind_are_one_band_with_the_longest_window(windows: tuple[int, ...]) -> None:
    assert bands_of(windows) == LayerBands(max(windows, default=0))


@pytest.mark.parametrize("windows", PATTERNS)
def test_bands_have_equally_many_layers_of_one_kind(windows: tuple[int, ...]) -> None:
    bands = bands_of(windows)
    size = len(windows) // bands.count
    assert sorted(bands.places) == [(band, place) for band in range(bands.count) for place in range(size)]
    for layer, window in enumerate(windows):
        assert (bands.place(layer)[0] >= bands.count - bands.full) == (window == 0)
    assert bands.full * size == windows.count(0) and bands.window == 9


@pytest.mark.parametrize(("windows", "count", "size"), [*zip(PADDED, (7, 7, 13), (5, 4, 5), strict=True)])
def test_the_last_band_with_windows_may_have_fewer_layers(windows: tuple[int, ...], count: int, size: int) -> None:
    bands = bands_of(windows)
    assert (bands.count, bands.page_layers(len(windows))) == (count, size)
    for layer, window in enumerate(windows):
        assert (bands.place(layer)[0] >= bands.count - bands.full) == (window == 0)
    assert len(set(bands.places)) == len(windows) < count * size <= len(windows) * 13 / 12


@pytest.mark.parametrize("windows", PADDED)
@pytest.mark.parametrize("step", [1, 3, 8, 100])
def test_what_is_left_of_a_page_is_written_with_its_last_layer(windows: tuple[int, ...], step: int) -> None:
    bands, seen = bands_of(windows), list[tuple[int, int]]()
    for first in range(0, len(windows), step):
        for each, begin, count in bands.spans(first, min(step, len(windows) - first)):
            seen += [(band, place) for band in each for place in range(begin, begin + count)]
    size = bands.page_layers(len(windows))
    assert sorted(seen) == [(band, place) for band in range(bands.count) for place in range(size)]


def test_gemma_3_has_six_bands_of_which_one_sees_everything() -> None:
    bands = bands_of(GEMMA_3 * 8)
    assert (bands.count, bands.full) == (6, 1)


@pytest.mark.parametrize("windows", PATTERNS)
@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_spans_name_each_layer_that_a_step_has_computed_once(windows: tuple[int, ...], size: int) -> None:
    bands, seen = bands_of(windows), list[tuple[int, int]]()
    for first in range(0, len(windows), size):
        for each, begin, count in bands.spans(first, min(size, len(windows) - first)):
            seen += [(band, place) for band in each for place in range(begin, begin + count)]
    assert sorted(seen) == sorted(bands.places)


def test_one_band_has_the_layers_as_they_are() -> None:
    assert ONE_BAND.spans(3, 4) == [((0,), 3, 4)] and ONE_BAND.place(5) == (0, 5)


@pytest.mark.parametrize("fields", [(0, 2, 1), (9, 1, 1), (9, 2, 2), (9, 2, 0)])
def test_bands_that_contradict_themselves_are_refused(fields: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        LayerBands(*fields)


@pytest.mark.parametrize("chunk", [1, 3, 8, 30])
def test_no_step_needs_more_pages_than_a_text_may_hold(chunk: int) -> None:
    random = Random(chunk)
    for _ in range(100):
        full, windowed = random.randint(1, 3), random.randint(1, 4)
        horizon = Horizon(random.randint(1, 60), random.choice((2, 4, 16)), full + windowed, full)
        total, done, pages, gone = random.randint(1, 300), 0, list[int](), 0
        while done < total:
            stop, first = min(total, done + chunk), horizon.first_page(done)
            for index in horizon.behind(gone, first):
                assert pages[index] != GONE and index % horizon.bands < windowed
                pages[index] = GONE
            gone = max(gone, first)
            pages += range(len(pages), horizon.whole(stop))
            assert len(held(pages)) <= horizon.most_pages(total, chunk) <= horizon.whole(total)
            done = stop
        assert all(page != GONE for band in range(windowed, horizon.bands) for page in pages[band :: horizon.bands])


def test_what_lands_are_all_pages_of_full_bands_and_the_last_ones_of_the_others() -> None:
    horizon = Horizon(9, 4, 3, 1)
    assert horizon.landing(0, 9, 0) == [True] * 9
    assert horizon.landing(3, 12, 3) == [False, False, True] * 2 + [True] * 3


BANDS = LayerBands(8, 3, 1, ((0, 0), (1, 0), (2, 0)))  # two bands with windows, one without


def first_read(count: int) -> int:
    return max(0, count - 2)


def published(pool: PagePool, stretches: int) -> tuple[list[bytes], tuple[int, ...]]:
    pages = pool.take(3 * stretches, NOBODY)
    assert pages is not None
    hashes = [bytes([1, index]) for index in range(stretches)]
    for index, page in enumerate(pages):
        pool.publish(page, hashes[index // 3], index % 3)
    return hashes, pages


def test_a_hit_has_every_page_of_full_bands_and_of_the_others_those_that_are_read() -> None:
    pool = PagePool(18, bands=BANDS)
    hashes, pages = published(pool, 6)
    pool.release(pages)
    found = pool.match(hashes, first_read)
    gone = [(GONE, GONE, pages[3 * stretch + 2]) for stretch in range(4)]
    assert found == (*chain.from_iterable(gone), *pages[12:])
    assert pool.references == 10 and pool.counts().cached == 8
    pool.release(held(found))
    assert pool.match(hashes[:3]) == pages[:9], "without a horizon all pages are read"


def test_a_hit_ends_where_a_band_lacks_a_page_that_is_read() -> None:
    pool = PagePool(18, bands=BANDS)
    hashes, pages = published(pool, 6)
    pool.release([pages[index] for index in (0, 1, 3, 4)])  # bands with windows have them: they are evicted first
    assert pool.take(4, NOBODY) is not None
    assert pool.known(hashes, first_read) == 6 and pool.known(hashes) == 0
    assert pool.known(hashes[:3], first_read) == 0, "the second stretch is read behind the third"
    pool.release([pages[11]])  # the fourth stretch of the full band
    assert pool.take(1, NOBODY) is not None
    assert pool.known(hashes, first_read) == 0


def test_one_hash_is_told_of_a_stretch_and_it_leaves_with_the_full_band() -> None:
    pool = PagePool(9, bands=BANDS)
    hashes, pages = published(pool, 3)
    assert pool.hashes() == tuple(hashes) and pool.changes() == (tuple(hashes), ())
    pool.release(pages[:2])
    assert pool.take(2, NOBODY) is not None and pool.changes() == ((), ())
    pool.release(pages[2:3])
    assert pool.take(1, NOBODY) is not None and pool.changes() == ((), (hashes[0],))
