"""The page pool: the counts of its five states always add up to the pool; references, the prefix cache, eviction."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.pool.pages import Counts, PagePool, PageState

PAGES = 7
SALTS = (b"", b"alice", b"bob")


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Machine(RuleBasedStateMachine):
    """Runs every operation in any order and keeps its own plain record of who holds which page."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, clear=self.clear)
        self.texts: dict[int, set[bytes]] = {page: set() for page in range(PAGES)}  # page -> salts whose text it holds
        self.holders: list[list[int]] = []  # requests: their pages, one reference each
        self.landings: list[tuple[str, tuple[int, ...]]] = []
        self.quarantined: dict[int, str] = {}
        self.findable: dict[bytes, int] = {}  # what a gateway knows, from the change log alone
        self.new: dict[bytes, int] = {}  # published since the last look at that log
        self.owners = 0

    def clear(self, pages: Sequence[int]) -> None:
        for page in pages:
            assert self.texts[page], "it is cleared for nothing"
            self.texts[page] = set()

    def written(self, pages: Iterable[int], salt: bytes) -> None:
        """A request of this tenant gets the pages, and some of their slots are written."""
        for page in pages:
            assert self.texts[page] <= {salt}, "the page holds text of another tenant"
            self.texts[page].add(salt)

    # ---- operations

    @rule(count=st.integers(0, PAGES + 1), salt=st.sampled_from(SALTS))
    def take(self, count: int, salt: bytes) -> None:
        before = self.pool.available
        pages = self.pool.take(count, salt)
        self.written(pages or (), salt)
        assert (pages is None) == (count > before), "all or none"
        if pages is not None:
            assert len(set(pages)) == count
            assert not set(pages) & {p for holder in self.holders for p in holder}, "a page is handed out twice"
            self.holders.append(list(pages))

    @rule(count=st.integers(0, PAGES + 1), salt=st.sampled_from(SALTS))
    def land(self, count: int, salt: bytes) -> None:
        before, self.owners = self.pool.available, self.owners + 1
        owner = f"owner {self.owners}"
        pages = self.pool.land(count, owner, salt)
        assert (pages is None) == (count > before)
        self.written(pages or (), salt)
        if pages:
            assert all(self.pool.owner(page) == owner for page in pages)
            self.landings.append((owner, pages))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), number=st.integers(0, 12))
    def publish(self, data: st.DataObject, number: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if holder:
            page, name = data.draw(st.sampled_from(holder)), digest(number)
            self.pool.publish(page, name)
            if name not in self.findable and page not in self.findable.values():
                self.new[name] = page

    @rule(numbers=st.lists(st.integers(0, 12), max_size=5))
    def match(self, numbers: list[int]) -> None:
        chain = [digest(number) for number in numbers]
        expected = self.pool.known(chain)
        pages = self.pool.match(chain)
        assert len(pages) == expected
        self.holders.append(list(pages))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @precondition(lambda self: self.landings)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        _, pages = self.landings.pop(data.draw(st.integers(0, len(self.landings) - 1)))
        self.pool.admit(pages)
        self.holders.append(list(pages))

    @precondition(lambda self: self.landings)
    @rule(data=st.data())
    def unland(self, data: st.DataObject) -> None:
        _, pages = self.landings.pop(data.draw(st.integers(0, len(self.landings) - 1)))
        self.pool.unland(pages)

    @precondition(lambda self: self.landings)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        owner, pages = self.landings.pop(data.draw(st.integers(0, len(self.landings) - 1)))
        self.pool.quarantine(pages)
        self.quarantined.update(dict.fromkeys(pages, owner))

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def prove(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(set(self.quarantined.values()))))
        mine = [page for page, other in self.quarantined.items() if other == owner]
        assert self.pool.quarantined(lambda other: other == owner) == len(mine)
        assert self.pool.prove(lambda other: other == owner) == len(mine)
        for page in mine:
            del self.quarantined[page]

    # ---- what must stay true

    @invariant()
    def every_page_is_in_exactly_one_state_and_the_sum_is_the_pool(self) -> None:
        counts = self.pool.counts()
        states = Counter(self.pool.state(page) for page in range(PAGES))
        assert counts.total == PAGES
        assert counts == Counts(*(states[state] for state in PageState))

    @invariant()
    def a_page_is_in_use_exactly_while_somebody_holds_it(self) -> None:
        held = Counter(page for holder in self.holders for page in holder)
        landing = {page for _, pages in self.landings for page in pages}
        for page in range(PAGES):
            state = self.pool.state(page)
            assert (state is PageState.IN_USE) == (held[page] > 0)
            assert (state is PageState.LANDING) == (page in landing)
            assert (state is PageState.QUARANTINED) == (page in self.quarantined)
            assert (self.pool.owner(page) is not None) == (page in landing or page in self.quarantined)

    @invariant()
    def the_change_log_tells_what_can_be_found_and_that_is_never_written(self) -> None:
        added, removed = self.pool.changes()
        assert list(added) == list(self.new)
        self.findable.update(self.new)
        self.new.clear()
        for name in removed:
            del self.findable[name]
        assert set(self.pool.hashes()) == set(self.findable)
        held = Counter(page for holder in self.holders for page in holder)
        for page in held:
            assert self.pool.writable(page) == (held[page] == 1 and page not in self.findable.values())


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def published(pool: PagePool, numbers: list[int]) -> tuple[int, ...]:
    pages = pool.take(len(numbers), b"")
    assert pages is not None
    for page, number in zip(pages, numbers, strict=True):
        pool.publish(page, digest(number))
    return pages


def test_what_does_not_fit_takes_nothing() -> None:
    pool = PagePool(4)
    assert pool.take(3, b"") is not None
    before = pool.counts()
    assert pool.take(2, b"") is None and pool.land(2, "owner", b"") is None
    assert pool.counts() == before


def test_the_page_that_was_used_longest_ago_is_evicted_first() -> None:
    pool = PagePool(3)
    for number in (1, 2, 3):
        pool.release(published(pool, [number]))
    pool.release(pool.match([digest(1)]))  # used again: now 2 is the oldest
    pool.take(1, b"")
    assert set(pool.hashes()) == {digest(1), digest(3)}
    pool.take(1, b"")
    assert set(pool.hashes()) == {digest(1)}


def test_of_one_chain_the_last_page_is_evicted_first() -> None:
    pool = PagePool(4)
    pool.release(published(pool, [1, 2, 3, 4]))
    pool.take(1, b"")
    assert pool.known([digest(n) for n in (1, 2, 3, 4)]) == 3
    pool.take(1, b"")
    assert pool.known([digest(n) for n in (1, 2, 3, 4)]) == 2


def test_free_pages_go_before_cached_ones() -> None:
    pool = PagePool(4)
    pool.release(published(pool, [1, 2]))
    pool.take(2, b"")
    assert pool.counts() == Counts(free=0, cached=2, in_use=2, landing=0, quarantined=0)


def test_a_page_in_use_is_never_evicted() -> None:
    pool = PagePool(2)
    pages = published(pool, [1, 2])
    assert pool.take(1, b"") is None
    pool.release(pages[1:])
    assert pool.take(1, b"") == pages[1:]
    assert pool.known([digest(1)]) == 1 and pool.known([digest(2)]) == 0


def test_a_shared_page_comes_back_with_its_last_holder() -> None:
    pool = PagePool(2)
    pages = published(pool, [1])
    again = pool.match([digest(1)])
    assert again == pages and not pool.writable(pages[0])
    pool.release(pages)
    assert pool.state(pages[0]) is PageState.IN_USE
    pool.release(again)
    assert pool.state(pages[0]) is PageState.CACHED


def test_the_first_page_with_a_hash_keeps_it() -> None:
    pool = PagePool(3)
    first, second = published(pool, [1]), published(pool, [1])
    assert pool.match([digest(1)]) == first
    pool.release(second)
    assert pool.state(second[0]) is PageState.FREE


def test_changes_name_what_came_and_what_was_evicted_once() -> None:
    pool = PagePool(1)
    pool.release(published(pool, [1]))
    assert pool.changes() == ((digest(1),), ())
    assert pool.changes() == ((), ())
    pool.take(1, b"")
    assert pool.changes() == ((), (digest(1),))


def test_without_a_cache_nothing_is_found_again() -> None:
    pool = PagePool(2, cache=False)
    pool.release(published(pool, [1]))
    assert pool.match([digest(1)]) == () and pool.counts().free == 2


@pytest.mark.parametrize("wrong", ["twice", "landing", "free"])
def test_a_page_without_a_reference_cannot_be_released(wrong: str) -> None:
    pool = PagePool(3)
    pages = pool.take(1, b"") if wrong == "twice" else pool.land(1, "owner", b"") if wrong == "landing" else (0,)
    assert pages is not None
    if wrong == "twice":
        pool.release(pages)
    with pytest.raises(ValueError, match="page"):
        pool.release(pages)


def test_proof_frees_the_pages_of_that_owner_only() -> None:
    pool = PagePool(4)
    one, other = pool.land(1, "one", b""), pool.land(2, "other", b"")
    assert one and other
    pool.quarantine(one)
    pool.quarantine(other)
    assert pool.prove(lambda owner: owner == "one") == 1
    assert pool.quarantined_owners() == ("other",)
    assert pool.counts() == Counts(free=2, cached=0, in_use=0, landing=0, quarantined=2)


def test_proof_never_frees_a_landing_that_goes_on() -> None:
    pool = PagePool(2)
    pool.land(1, "owner", b"")
    assert pool.prove(lambda owner: True) == 0
    assert pool.counts().landing == 1


def test_only_a_landing_page_can_be_admitted_given_up_or_quarantined() -> None:
    pool = PagePool(2)
    pages = pool.take(1, b"")
    assert pages
    for operation in (pool.admit, pool.unland, pool.quarantine):
        with pytest.raises(ValueError, match="in_use, not landing"):
            operation(pages)
