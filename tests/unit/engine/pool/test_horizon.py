"""Which pages a text still needs where all layers have windows, and what the prefix cache gives of such texts."""

from random import Random

import pytest

from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool
from engine.step.batch import pages_needed

NOBODY = b""


@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 31])
@pytest.mark.parametrize("page_tokens", [1, 4, 16])
def test_the_first_page_is_that_of_the_first_slot_that_a_row_reads(window: int, page_tokens: int) -> None:
    horizon = Horizon(window, page_tokens)
    for slot in range(120):
        assert horizon.first_page(slot) == max(0, slot - window + 1) // page_tokens
        assert Horizon(0, page_tokens).first_page(slot) == 0


@pytest.mark.parametrize("chunk", [1, 3, 8, 30])
def test_no_step_needs_more_pages_than_a_text_may_hold(chunk: int) -> None:
    random = Random(chunk)
    for _ in range(200):
        horizon, total = Horizon(random.randint(1, 60), random.choice((2, 4, 16))), random.randint(1, 300)
        done = 0
        while done < total:
            stop = min(total, done + chunk)
            needed = pages_needed(stop, horizon.page_tokens) - horizon.first_page(done)
            assert needed <= horizon.most_pages(total, chunk) <= pages_needed(total, horizon.page_tokens)
            done = stop
        assert Horizon(0, 4).most_pages(total, chunk) == pages_needed(total, 4)


def test_where_all_layers_keep_the_same_pages_the_longest_text_has_all_of_the_pool() -> None:
    assert Horizon(0, 4).longest_text(10, 8) == Horizon(16, 4).longest_text(10, 8) == 40


def published(pool: PagePool, count: int) -> list[bytes]:
    pages = pool.take(count, NOBODY)
    assert pages is not None
    hashes = [bytes([1, index]) for index in range(count)]
    for page, digest in zip(pages, hashes, strict=True):
        pool.publish(page, digest)
        pool.release([page])  # the first page of the text is the least recently used one
    return hashes


def test_a_hit_takes_references_to_the_pages_before_its_end_alone() -> None:
    pool = PagePool(8)
    hashes = published(pool, 6)
    found = pool.match(hashes, lambda count: max(0, count - 2))
    assert found[:4] == (GONE,) * 4 and len(held(found)) == 2
    assert pool.references == 2 and pool.counts().cached == 4
    pool.release(held(found))
    assert pool.counts().in_use == 0


def test_a_hit_ends_where_all_pages_that_are_read_behind_it_are_cached() -> None:
    pool = PagePool(8)
    hashes = published(pool, 6)
    two = pool.take(4, NOBODY)  # evicts the first two
    assert two is not None and pool.known(hashes) == 0
    assert pool.known(hashes, lambda count: max(0, count - 4)) == 6
    assert pool.known(hashes, lambda count: max(0, count - 5)) == 0
    assert pool.known(hashes[:3], lambda count: max(0, count - 1)) == 3
    assert pool.known([*hashes[:3], b"other", *hashes[3:]], lambda count: max(0, count - 2)) == 7
    assert pool.known([*hashes[:4], b"other"], lambda count: max(0, count - 2)) == 4
    assert pool.match(hashes, lambda count: max(0, count - 5)) == () and pool.references == 4


def test_without_windows_a_hit_ends_at_the_first_page_that_is_missing() -> None:
    pool = PagePool(8)
    hashes = published(pool, 4)
    assert pool.known([*hashes[:2], b"other", *hashes[2:]]) == 2
