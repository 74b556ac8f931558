"""Page reports: who holds every page of a worker's pool, for a gateway at which a person asks.

A gateway sends PageQuery, and the worker answers PageReport: sums and holders of one moment, and the wanted pages one
by one as runs. What takes long on large pools is done in slices, so that no other message of the worker waits for
longer than a slice takes. Without a query nothing here runs."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from mesh.messages.orders import PageQuery
from mesh.messages.reports import PageHolder, PageReport
from mesh.sessions.page_map import PAGE_STATES, SLICE_PAGES, PageStates, pack
from mesh.sessions.session import Session

MOST_LISTED = 65_536  # pages of one report that are listed one by one
MOST_HOLDERS = 16_384  # holders in one report; how many there are beyond stands among its faults
MOST_QUERIES = 16  # queries that wait for their report, over all sessions; further ones replace the oldest
MAP_CELLS = 2048


class HeldPages(Protocol):
    @property
    def pages(self) -> Sequence[int]: ...

    def described(self, now: float) -> PageHolder: ...


class PageBook(PageStates, Protocol):
    """A pool of pages and all that hold some of them."""

    def sums(self) -> Mapping[str, int]:
        """Number of pages in each state."""

    def held(self) -> Sequence[HeldPages]:
        """All holders of pages. They name every page that is in use, landing or quarantined."""

    def faults(self) -> tuple[str, ...]:
        """Pages that do not add up, in words."""


class PageReports:
    """Answers the queries of all gateways, one after the other."""

    def __init__(self, book: PageBook) -> None:
        self._book = book
        self._queries: deque[tuple[Session, PageQuery]] = deque(maxlen=MOST_QUERIES)
        self._task: asyncio.Task[None] | None = None

    def ask(self, session: Session, query: PageQuery) -> None:
        self._queries.append((session, query))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self) -> None:
        while self._queries:
            session, query = self._queries.popleft()
            report = await report_of(self._book, query, asyncio.get_running_loop().time())
            if not session.ended:
                session.send(report)


async def report_of(book: PageBook, query: PageQuery, now: float) -> PageReport:
    """The sums, the holders and the listed pages are of one moment; the map is made behind it, in slices."""
    every, faults = book.held(), book.faults()
    held = every[:MOST_HOLDERS]
    if len(every) > len(held):
        faults += (f"{len(every) - len(held):,} more holders are not listed",)
    sums, holders = book.sums(), tuple([each.described(now) for each in held])
    first = min(query.first, book.pages)
    stop = min(book.pages, first + min(query.count, MOST_LISTED))
    states = book.states(first, stop)
    pages = [tuple(each.pages) for each in held] if stop > first else []
    lengths, codes, sharers, held_by = await runs_of_holders(states, await by_page(pages, first, stop), first)
    return PageReport(
        number=query.number,
        free=sums["free"],
        cached=sums["cached"],
        in_use=sums["in_use"],
        landing=sums["landing"],
        quarantined=sums["quarantined"],
        holders=holders,
        faults=faults,
        page_map=await pack(book, most_cells=MAP_CELLS),
        lengths=lengths,
        states=codes,
        sharers=sharers,
        held_by=held_by,
    )


async def by_page(held: Sequence[Sequence[int]], first: int, stop: int) -> dict[int, list[int]]:
    """The holders, by their indexes, of each page from `first` up to, but not including, `stop`."""
    found, seen = dict[int, list[int]](), 0
    for index, pages in enumerate(held):
        for begin in range(0, len(pages), SLICE_PAGES):
            part = pages[begin : begin + SLICE_PAGES]
            for page in part:
                if first <= page < stop:
                    found.setdefault(page, []).append(index)
            seen += len(part)
            if seen >= SLICE_PAGES:
                seen = 0
                await asyncio.sleep(0)
    return found


async def runs_of_holders(
    states: Sequence[str], holders: Mapping[int, Sequence[int]], first: int
) -> tuple[tuple[int, ...], bytes, tuple[int, ...], tuple[int, ...]]:
    """Neighbouring pages of equal state and equal holders as runs: their lengths, codes of states, numbers of holders,
    and the holders."""
    lengths, codes, sharers, held_by, last = list[int](), bytearray(), list[int](), list[int](), None
    for begin in range(0, len(states), SLICE_PAGES):
        pages = range(begin, min(begin + SLICE_PAGES, len(states)))
        for kind, run in groupby((states[page], tuple(holders.get(first + page, ()))) for page in pages):
            count = sum(1 for _ in run)
            if kind == last:
                lengths[-1] += count
                continue
            last = kind
            lengths.append(count)
            codes.append(PAGE_STATES.index(kind[0]))
            sharers.append(len(kind[1]))
            held_by.extend(kind[1])
        await asyncio.sleep(0)
    return tuple(lengths), bytes(codes), tuple(sharers), tuple(held_by)
