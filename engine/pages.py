"""The page pool of one worker: every page is in exactly one of five states and the sum is the pool.

Both tiers allocate here (steps 3, 6 and 9 of a request's life). The prefix cache is an index over the same pages: a
full page whose tokens are all accepted may be published under its chained hash, is shared by reference while used, and
stays cached, least recently used out first, when nobody refers to it any more."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    FREE = "free"
    CACHED = "cached"  # nobody refers to it, its hash is known
    IN_USE = "in_use"  # at least one request reads or writes it
    LANDING = "landing"  # a writer in another process may write it
    QUARANTINED = "quarantined"  # its landing ended, but the writer may still write


@dataclass(frozen=True, slots=True)
class Counts:
    free: int
    cached: int
    in_use: int
    landing: int
    quarantined: int

    @property
    def total(self) -> int:
        return self.free + self.cached + self.in_use + self.landing + self.quarantined


class PagePool:
    def __init__(self, pages: int, *, cache: bool = True) -> None:
        self.pages = pages
        self.cache = cache
        self._state = [State.FREE] * pages
        self._refs = [0] * pages
        self._free = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._owner: dict[int, Hashable] = {}  # of landing and quarantined pages
        self._added: list[bytes] = []
        self._removed: list[bytes] = []

    @property
    def available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + len(self._cached)

    def counts(self) -> Counts:
        quarantined = sum(self._state[page] is State.QUARANTINED for page in self._owner)
        landing = len(self._owner) - quarantined
        used = self.pages - len(self._free) - len(self._cached) - len(self._owner)
        return Counts(len(self._free), len(self._cached), used, landing, quarantined)

    def state(self, page: int) -> State:
        return self._state[page]

    def owner(self, page: int) -> Hashable:
        """Of a landing or quarantined page."""
        return self._owner.get(page)

    # ---- pages of requests

    def take(self, count: int) -> tuple[int, ...] | None:
        """Pages for one reader and writer: all or none."""
        return self._allocate(count, State.IN_USE)

    def share(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._cached.pop(page, None)
            self._state[page] = State.IN_USE
            self._refs[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Give references back; the last pages of a chain become the first to be evicted."""
        for page in reversed(pages):
            if self._state[page] is not State.IN_USE or self._refs[page] < 1:
                raise ValueError(f"page {page} is {self._state[page].value} with {self._refs[page]} references")
            self._refs[page] -= 1
            if self._refs[page] == 0:
                if page in self._hash_of:
                    self._state[page] = State.CACHED
                    self._cached[page] = None
                else:
                    self._set_free(page)

    def writable(self, page: int) -> bool:
        """May the only holder write here, or must the page be copied first?"""
        return self._refs[page] == 1 and page not in self._hash_of

    # ---- landings and quarantine

    def land(self, count: int, owner: Hashable) -> tuple[int, ...] | None:
        pages = self._allocate(count, State.LANDING)
        for page in pages or ():
            self._owner[page] = owner
        return pages

    def own(self, pages: Iterable[int], owner: Hashable) -> None:
        for page in pages:
            self._expect(page, State.LANDING)
            self._owner[page] = owner

    def admit(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._expect(page, State.LANDING)
            del self._owner[page]
            self._state[page], self._refs[page] = State.IN_USE, 1

    def unland(self, pages: Iterable[int]) -> None:
        """The landing ended and no write can come."""
        for page in pages:
            self._expect(page, State.LANDING)
            del self._owner[page]
            self._set_free(page)

    def quarantine(self, pages: Iterable[int]) -> None:
        """The landing ended and a write may still come: wait for proof."""
        for page in pages:
            self._expect(page, State.LANDING)
            self._state[page] = State.QUARANTINED

    def prove(self, proven: Callable[[Hashable], bool]) -> int:
        """Free the quarantined pages whose owner can write no more; returns how many."""
        pages = self._quarantined(proven)
        for page in pages:
            del self._owner[page]
            self._set_free(page)
        return len(pages)

    def quarantined(self, matching: Callable[[Hashable], bool]) -> int:
        """How many pages wait for proof from such an owner."""
        return len(self._quarantined(matching))

    def quarantined_owners(self) -> tuple[Hashable, ...]:
        """Each once, in the order in which their pages were handed out."""
        pages = self._owner.items()
        return tuple(dict.fromkeys(owner for page, owner in pages if self._state[page] is State.QUARANTINED))

    # ---- prefix cache

    def match(self, hashes: Sequence[bytes]) -> tuple[int, ...]:
        """The longest known chain, with a reference taken on each page."""
        pages = []
        for digest in hashes:
            if (page := self._page_of.get(digest)) is None:
                break
            pages.append(page)
        self.share(pages)
        return tuple(pages)

    def known(self, hashes: Sequence[bytes]) -> int:
        """How many pages `match` would find."""
        return next((i for i, digest in enumerate(hashes) if digest not in self._page_of), len(hashes))

    def publish(self, page: int, digest: bytes) -> None:
        """A full page of accepted tokens may be found by others from now on. The first page with a hash keeps it."""
        if self.cache and digest not in self._page_of and page not in self._hash_of:
            self._expect(page, State.IN_USE)
            self._page_of[digest], self._hash_of[page] = page, digest
            self._added.append(digest)

    def hashes(self) -> tuple[bytes, ...]:
        return tuple(self._page_of)

    def changes(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """(added, removed) since the last call."""
        added, removed = tuple(self._added), tuple(self._removed)
        self._added, self._removed = [], []
        return added, removed

    # ----

    def _quarantined(self, matching: Callable[[Hashable], bool]) -> list[int]:
        return [p for p, o in self._owner.items() if self._state[p] is State.QUARANTINED and matching(o)]

    def _allocate(self, count: int, state: State) -> tuple[int, ...] | None:
        if count > self.available:
            return None
        pages = []
        for _ in range(count):
            if not self._free:
                self._evict()
            page = self._free.pop()
            self._state[page], self._refs[page] = state, 1 if state is State.IN_USE else 0
            pages.append(page)
        return tuple(pages)

    def _evict(self) -> None:
        page, _ = self._cached.popitem(last=False)
        digest = self._hash_of.pop(page)
        del self._page_of[digest]
        self._removed.append(digest)
        self._set_free(page)

    def _set_free(self, page: int) -> None:
        self._state[page], self._refs[page] = State.FREE, 0
        self._free.append(page)

    def _expect(self, page: int, state: State) -> None:
        if self._state[page] is not state:
            raise ValueError(f"page {page} is {self._state[page].value}, not {state.value}")
