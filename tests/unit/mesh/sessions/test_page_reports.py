"""Page reports: every page arrives with its state and its holders, and a large pool blocks nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.pool.ledger import Holder, Ledger
from engine.pool.pages import PagePool, PageState
from mesh.messages.codec import DOWN, UP
from mesh.messages.message import Message
from mesh.messages.orders import PageQuery
from mesh.messages.reports import PageReport
from mesh.sessions.page_map import PAGE_STATES, SLICE_PAGES
from mesh.sessions.page_reports import MOST_HOLDERS, MOST_LISTED, MOST_QUERIES, PageReports, report_of


@dataclass
class ReportSession:
    sent: list[Message] = field(default_factory=list)
    ended: bool = False

    def send(self, message: Message) -> None:
        self.sent.append(message)


def ledger_of(pool: PagePool, *holders: Holder) -> Ledger:
    return Ledger(pool, lambda: holders)


def report(ledger: Ledger, first: int = 0, count: int = 0, now: float = 10.0) -> PageReport:
    made = asyncio.run(report_of(ledger, PageQuery(7, first, count), now))
    decoded = UP.decode(UP.encode(made))
    assert decoded == made and isinstance(decoded, PageReport)
    return decoded


def page_by_page(found: PageReport) -> list[tuple[str, list[int]]]:
    """State and holders of each listed page."""
    pages, place = list[tuple[str, list[int]]](), 0
    for length, code, sharers in zip(found.lengths, found.states, found.sharers, strict=True):
        pages += [(PAGE_STATES[code], list(found.held_by[place : place + sharers]))] * length
        place += sharers
    assert place == len(found.held_by)
    return pages


def test_every_page_is_reported_with_its_state_and_its_holders() -> None:
    pool = PagePool(10)
    used, landing, stuck = pool.take(3, b""), pool.land(2, "p", b""), pool.land(1, "q", b"")
    assert used and landing and stuck
    pool.share(used[:1])
    pool.quarantine(stuck)
    ledger = ledger_of(
        pool,
        Holder("running", used, request=5, attempt=2, since_seconds=4.0),
        Holder("running", used[:1], request=6),
        Holder("landing", landing, PageState.LANDING, 8, 1, 99),
        Holder("quarantine", stuck, PageState.QUARANTINED, 9, 1, 98, "no_progress", 1.0),
    )
    sums = report(ledger)
    assert (sums.free, sums.cached, sums.in_use, sums.landing, sums.quarantined) == (4, 0, 3, 2, 1)
    assert [(each.request, each.pages, each.seconds) for each in sums.holders] == [
        (5, 3, 6.0),
        (6, 1, -1.0),
        (8, 2, -1.0),
        (9, 1, 9.0),
    ]
    assert (sums.holders[3].why, sums.holders[3].writer) == ("no_progress", 98) and not sums.lengths
    pages = page_by_page(report(ledger, 0, 100))
    assert len(pages) == 10 and pages[used[0]] == ("in_use", [0, 1]) and pages[used[1]] == ("in_use", [0])
    assert all(pages[page] == ("landing", [2]) for page in landing) and pages[stuck[0]] == ("quarantined", [3])
    assert page_by_page(report(ledger, 2, 5)) == pages[2:7] and page_by_page(report(ledger, 50, 5)) == []


def test_what_does_not_add_up_is_reported_too() -> None:
    pool = PagePool(4)
    taken = pool.take(1, b"")
    assert taken
    ledger = ledger_of(pool)
    assert report(ledger).faults == ()
    ledger.check()
    assert report(ledger).faults == (f"page {taken[0]} is in_use with 1 references, held by nobody",)


def test_holders_that_do_not_fit_into_a_report_are_counted() -> None:
    book = WrittenBook(["in_use"] * 4)
    book.holders = [[0]] * (MOST_HOLDERS + 2)
    made = asyncio.run(report_of(book, PageQuery(1, 0, 0), 0.0))
    assert len(made.holders) == MOST_HOLDERS and made.faults == ("2 more holders are not listed",)
    book.holders = [[0]] * MOST_HOLDERS
    assert asyncio.run(report_of(book, PageQuery(1, 0, 0), 0.0)).faults == (), "negative control"


@given(st.lists(st.tuples(st.sampled_from(PAGE_STATES), st.sets(st.integers(0, 3))), max_size=50), st.integers(0, 9))
def test_the_runs_of_any_pool_give_back_each_page(pages: list[tuple[str, set[int]]], first: int) -> None:
    book = WrittenBook([state for state, _ in pages])
    for holder in range(4):
        book.holders.append([page for page, (_, by) in enumerate(pages) if holder in by])
    made = asyncio.run(report_of(book, PageQuery(1, first, 1000), 0.0))
    assert page_by_page(made) == [(state, sorted(by)) for state, by in pages[first:]]


@dataclass
class WrittenBook:
    """A pool whose pages the test writes."""

    names: list[str]
    holders: list[list[int]] = field(default_factory=list)

    @property
    def pages(self) -> int:
        return len(self.names)

    def states(self, first: int, stop: int) -> list[str]:
        return self.names[first:stop]

    def sums(self) -> dict[str, int]:
        return {state: self.names.count(state) for state in PAGE_STATES}

    def held(self) -> Sequence[Holder]:
        return [Holder("running", pages, request=number + 1) for number, pages in enumerate(self.holders)]

    def faults(self) -> tuple[str, ...]:
        return ()


def test_a_pool_of_a_million_pages_lets_others_run_between_slices() -> None:
    count = 1_000_000
    book = WrittenBook(["in_use"] * count, [list(range(count))])

    async def main() -> tuple[PageReport, int]:
        making, passes = asyncio.ensure_future(report_of(book, PageQuery(1, 0, count), 0.0)), 0
        while not making.done():
            await asyncio.sleep(0)
            passes += 1
        return making.result(), passes

    found, passes = asyncio.run(main())
    assert found.in_use == count and found.lengths == (MOST_LISTED,) and found.held_by == (0,)
    assert passes > count // SLICE_PAGES and len(UP.encode(found)) < 1000


def test_queries_are_answered_in_order_and_a_flood_of_them_stays_small() -> None:
    session, gone = ReportSession(), ReportSession(ended=True)

    async def main() -> None:
        reports = PageReports(ledger_of(PagePool(3)))
        reports.ask(cast(Any, gone), PageQuery(1))
        for number in range(100):
            query = DOWN.decode(DOWN.encode(PageQuery(number)))
            assert isinstance(query, PageQuery)
            reports.ask(cast(Any, session), query)
        await asyncio.sleep(0.01)
        reports.close()

    asyncio.run(main())
    numbers = [each.number for each in session.sent if isinstance(each, PageReport)]
    assert numbers == list(range(100 - MOST_QUERIES, 100)) and not gone.sent
