"""A page is cleared exactly when it goes from one tenant to another, and before anyone may write it."""

from collections.abc import Sequence

from engine.pool.pages import PagePool, PageState
from tests.unit.engine.pool.test_pages import digest


def cleared_of(*tenants: bytes) -> list[int]:
    """How many of two pages are cleared for each of these tenants, who take both, one after the other."""
    cleared = list[Sequence[int]]()
    pool, found = PagePool(2, clear=cleared.append), list[int]()
    for salt in tenants:
        pages = pool.take(2, salt)
        assert pages is not None
        pool.release(pages)
        found.append(sum(map(len, cleared)))
        cleared.clear()
    return found


def test_pages_are_cleared_exactly_when_their_tenant_changes() -> None:
    assert cleared_of(b"alice", b"alice", b"bob", b"alice", b"") == [0, 0, 2, 2, 2]
    assert cleared_of(b"", b"") == [0, 0], "without salts nothing is ever cleared"


def test_a_page_is_cleared_before_its_writer_may_learn_of_it_and_only_the_foreign_one() -> None:
    states = list[PageState]()
    pool = PagePool(2, clear=lambda pages: states.extend(pool.state(page) for page in pages))
    pool.release(pool.take(1, b"alice") or ())
    assert pool.land(2, "writer", b"bob") is not None
    assert states == [PageState.LANDING] and pool.cleared == 1


def test_a_cached_page_that_is_evicted_for_another_tenant_is_cleared_and_one_that_is_found_is_not() -> None:
    cleared = list[int]()
    pool = PagePool(1, clear=cleared.extend)
    pages = pool.take(1, b"alice") or ()
    pool.publish(pages[0], digest(1))
    pool.release(pages)
    pool.release(pool.match([digest(1)]))
    assert cleared == []
    assert pool.take(1, b"bob") == pages and cleared == [*pages]
