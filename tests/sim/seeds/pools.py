"""A page pool that is checked after every event that has changed it: each page is where its state says, and is referred
to by exactly those that hold it."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

from decode_svc.worker import DecodeWorker
from engine.pool.horizon import GONE
from engine.pool.pages import PagePool, PageState
from prefill_svc.worker import PrefillWorker


class WatchedPool(PagePool):
    changed = False
    handed: Callable[[Sequence[int], bytes], None] = staticmethod(lambda pages, salt: None)  # pages that a tenant got

    def share(self, pages: Iterable[int]) -> None:
        self.changed = True
        super().share(pages)

    def release(self, pages: Sequence[int]) -> None:
        self.changed = True
        super().release(pages)

    def admit(self, pages: Iterable[int]) -> None:
        self.changed = True
        super().admit(pages)

    def unland(self, pages: Iterable[int]) -> None:
        self.changed = True
        super().unland(pages)

    def quarantine(self, pages: Iterable[int]) -> None:
        self.changed = True
        super().quarantine(pages)

    def prove(self, proven: Callable[[Hashable], bool]) -> int:
        self.changed = True
        return super().prove(proven)

    def _allocate(self, count: int, state: PageState, salt: bytes) -> tuple[int, ...] | None:
        self.changed = True
        pages = super()._allocate(count, state, salt)
        self.handed(pages or (), salt)
        return pages

    def shared(self, page: int) -> bool:
        """Others read the page, or can find it: written apart from the product's own rule, `writable`."""
        return self._refs[page] != 1 or page in self._hash_of

    def faults(self, worker: PrefillWorker | DecodeWorker) -> list[str]:
        """Everything that is wrong with the pages now."""
        counts, states = self.counts(), self._state
        stated = {
            PageState.FREE: counts.free,
            PageState.CACHED: counts.cached,
            PageState.IN_USE: counts.in_use,
            PageState.LANDING: counts.landing,
            PageState.QUARANTINED: counts.quarantined,
        }
        found = [f"not {n} pages are {each.value}" for each, n in stated.items() if states.count(each) != n]
        free = list(map(states.__getitem__, self._free)).count(PageState.FREE)
        if len(set(self._free)) != len(self._free) or free != len(self._free):
            found.append(f"the free list is wrong: {sorted(self._free)}")
        held = _held(worker, self.pages)
        if held != self._refs:
            page = next(page for page in range(self.pages) if self._refs[page] != held[page])
            what = f"page {page}, {self._state[page].value}, has {self._refs[page]} references and {held[page]} holders"
            found.append(what)
        landing = _landing(worker)
        if sorted(landing) != sorted(page for page in self._owner if self._state[page] is PageState.LANDING):
            found.append(f"the pages of the landings are {sorted(landing)}, not those that land")
        return found


def _held(worker: PrefillWorker | DecodeWorker, pages: int) -> list[int]:
    """How many requests hold each page."""
    holders: list[Iterable[int]] = [exam.pages for exam in worker._examinations._all.values()]
    if isinstance(worker, DecodeWorker):
        holders += [request.pages for request in worker.requests.values()]
        holders += [flight.doomed for flight in worker._flights._flying]
    else:
        holders += [prompt.own.pages for prompt in worker.prompts]
        holders += [[source for source, _ in prompt.own.copies] for prompt in worker.prompts]
    held = [0] * pages
    for page in chain.from_iterable(holders):
        if page != GONE:
            held[page] += 1
    return held


def _landing(worker: PrefillWorker | DecodeWorker) -> list[int]:
    if not isinstance(worker, DecodeWorker):
        return []
    return [page for r in worker.requests.values() if r.landing is not None for page in r.landing.writable]
