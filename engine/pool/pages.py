"""The page pool of one worker: every page is in exactly one of five states (`docs/protocol.md`, "Page of the decode
pool"), and the counts of the five states add up to the pool.

Both tiers allocate, share and release pages here (steps 3, 6 and 9 of a request's life). The prefix cache is an index
over the same pages: a full page whose tokens are all accepted may be published under its chained hash, in the index of
its band (engine/pool/bands.py). Requests share such a page by reference. Without references it stays cached, and the
least recently used page is evicted first.

A page that has belonged to another tenant is cleared before it is handed out (`docs/security.md`, "Tenants")."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from engine.pool.bands import ONE_BAND, LayerBands
from engine.pool.horizon import GONE, held


class PageState(Enum):
    FREE = "free"  # its content is of no use
    CACHED = "cached"  # no request refers to it, but its hash is known
    IN_USE = "in_use"  # at least one request refers to it
    LANDING = "landing"  # a writer in another process may write it
    QUARANTINED = "quarantined"  # its landing has ended, but the writer may still write it


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


# Number of a text's first stretches -> index of the first of them whose pages are still read in bands with windows.
FirstRead = Callable[[int], int]
Clear = Callable[[Sequence[int]], None]  # makes every byte of these pages zero, and returns when that is done


def every_page(count: int) -> int:
    """All pages are read."""
    return 0


def no_memory(pages: Sequence[int]) -> None:
    """Nothing is to be cleared: the pool counts pages that have no memory, as in tests of its counts."""


class PagePool:
    """`clear` reaches the memory under the pages, which is zero when the pool is made. `bands`: how the model's layers
    lie in them."""

    def __init__(
        self, pages: int, *, cache: bool = True, clear: Clear = no_memory, bands: LayerBands = ONE_BAND
    ) -> None:
        self.pages, self.bands = pages, bands
        self.cache = cache
        self.cleared = 0  # pages that were cleared since the start, because they changed their tenant
        self._clear = clear
        self._salt_of: dict[int, bytes] = {}  # page -> salt of the tenant that had it last; no request had the others
        self._state = [PageState.FREE] * pages
        self._refs = [0] * pages
        self._free = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: list[dict[bytes, int]] = [{} for _ in range(bands.count)]  # one for each band
        self._windowed, self._full = (
            self._page_of[: bands.count - bands.full],
            self._page_of[bands.count - bands.full :],
        )
        self._hash_of: dict[int, tuple[int, bytes]] = {}  # page -> its band and its hash
        self.references = 0  # references that all requests have to all pages in use
        self._owner: dict[int, Hashable] = {}  # page -> the owner that may write it, for landing and quarantined pages
        self._quarantined_pages = 0
        self._told = bands.count - 1  # the band whose hashes gateways learn: it keeps a text's pages longest
        self._added: list[bytes] = []  # hashes published in that band since `changes` was last called
        self._removed: list[bytes] = []  # hashes evicted from it since then

    @property
    def available(self) -> int:
        """Pages that can be handed out now: free ones, and cached ones after their eviction."""
        return len(self._free) + len(self._cached)

    def counts(self) -> Counts:
        used = self.pages - len(self._free) - len(self._cached) - len(self._owner)
        return Counts(len(self._free), len(self._cached), used, self.landing(), self._quarantined_pages)

    def state(self, page: int) -> PageState:
        return self._state[page]

    def references_to(self, page: int) -> int:
        """How many requests refer to the page."""
        return self._refs[page]

    def landing(self) -> int:
        """How many pages are landing."""
        return len(self._owner) - self._quarantined_pages

    def states(self, first: int, stop: int) -> list[str]:
        """Names of the states of the pages from `first` up to, but not including, `stop`."""
        return [state.value for state in self._state[first:stop]]

    def owner(self, page: int) -> Hashable:
        """Owner of a landing or quarantined page: it may write the page. None for a page in another state."""
        return self._owner.get(page)

    # ---- pages of requests

    def take(self, count: int, salt: bytes) -> tuple[int, ...] | None:
        """Free or cached to in use: that many pages with one reference each, or None when there are too few. `salt` is
        that of the request's tenant."""
        return self._allocate(count, PageState.IN_USE, salt)

    def share(self, pages: Iterable[int]) -> None:
        """Adds a reference to each of these pages, which are cached or in use."""
        for page in pages:
            self._cached.pop(page, None)
            self._state[page] = PageState.IN_USE
            self._refs[page] += 1
            self.references += 1

    def release(self, pages: Sequence[int]) -> None:
        """Gives one reference per page back. A page without references becomes cached if it is published, else free.
        The pages of a prompt are released from its end, so that its last page is evicted before the pages it builds
        on."""
        for page in reversed(pages):
            if self._state[page] is not PageState.IN_USE or self._refs[page] < 1:
                raise ValueError(f"page {page} is {self._state[page].value} with {self._refs[page]} references")
            self._refs[page] -= 1
            self.references -= 1
            if self._refs[page] == 0:
                if page in self._hash_of:
                    self._state[page] = PageState.CACHED
                    self._cached[page] = None
                else:
                    self._set_free(page)

    def writable(self, page: int) -> bool:
        """True: only one request refers to the page, and the page is not published. False: it must be copied before a
        write."""
        return self._refs[page] == 1 and page not in self._hash_of

    # ---- landings and quarantine

    def land(self, count: int, owner: Hashable, salt: bytes) -> tuple[int, ...] | None:
        """Free or cached to landing: that many pages, which `owner` may write for the tenant of this salt, or None when
        there are too few."""
        pages = self._allocate(count, PageState.LANDING, salt)
        for page in pages or ():
            self._owner[page] = owner
        return pages

    def own(self, pages: Iterable[int], owner: Hashable) -> None:
        """Changes the owner of landing pages, for a new round of the same landing."""
        for page in pages:
            self._expect(page, PageState.LANDING)
            self._owner[page] = owner

    def admit(self, pages: Iterable[int]) -> None:
        """Landing to in use: the landing is over and its writer writes no more; one request refers to the pages."""
        for page in pages:
            self._expect(page, PageState.LANDING)
            del self._owner[page]
            self._state[page], self._refs[page] = PageState.IN_USE, 1
            self.references += 1

    def unland(self, pages: Iterable[int]) -> None:
        """Landing to free: the landing has ended and its writer can write no more."""
        for page in pages:
            self._expect(page, PageState.LANDING)
            del self._owner[page]
            self._set_free(page)

    def quarantine(self, pages: Iterable[int]) -> None:
        """Landing to quarantined: the landing has ended, but without proof that its writer can write no more."""
        for page in pages:
            self._expect(page, PageState.LANDING)
            self._state[page] = PageState.QUARANTINED
            self._quarantined_pages += 1

    def prove(self, proven: Callable[[Hashable], bool]) -> int:
        """Quarantined to free: the pages of every owner for which `proven` is true, because it can write no more.
        Returns how many pages that were."""
        pages = self._quarantined(proven)
        for page in pages:
            del self._owner[page]
            self._set_free(page)
        self._quarantined_pages -= len(pages)
        return len(pages)

    def quarantined(self, matching: Callable[[Hashable], bool]) -> int:
        """How many pages are quarantined because of owners for which `matching` is true."""
        return len(self._quarantined(matching))

    def quarantined_owners(self) -> tuple[Hashable, ...]:
        """The owners of quarantined pages, each once, in the order in which their pages were handed out."""
        pages = self._owner.items()
        return tuple(dict.fromkeys(owner for page, owner in pages if self._state[page] is PageState.QUARANTINED))

    # ---- prefix cache

    def match(self, hashes: Sequence[bytes], first_read: FirstRead = every_page) -> tuple[int, ...]:
        """The pages of the longest beginning of a text that the cache knows, a page for each band of each stretch; each
        gets a reference. Behind a beginning of so many stretches bands with windows read only those from `first_read`
        of that number on: GONE stands for their others."""
        count = self.known(hashes, first_read)
        first = min(first_read(count), count)
        columns = [[GONE] * first + [pages[digest] for digest in hashes[first:count]] for pages in self._windowed]
        columns += [[pages[digest] for digest in hashes[:count]] for pages in self._full]
        found = tuple(chain.from_iterable(zip(*columns, strict=True)))
        self.share(held(found))
        return found

    def known(self, hashes: Sequence[bytes], first_read: FirstRead = every_page) -> int:
        """Stretches of which `match` would return the pages. Takes no reference."""
        found = unbroken = 0  # stretches one behind the other, up to this one, that bands with windows know
        for count, digest in enumerate(hashes, 1):
            if not all(digest in pages for pages in self._full):
                break
            unbroken = unbroken + 1 if all(digest in pages for pages in self._windowed) else 0
            if unbroken and count - unbroken <= first_read(count):
                found = count
            elif first_read is every_page:
                break
        return found

    def publish(self, page: int, digest: bytes, band: int = 0) -> None:
        """Makes a full page of accepted tokens known under its hash: from now on other requests may share it. In each
        band a hash belongs to the first page that is published under it."""
        if self.cache and digest not in self._page_of[band] and page not in self._hash_of:
            self._expect(page, PageState.IN_USE)
            self._page_of[band][digest], self._hash_of[page] = page, (band, digest)
            if band == self._told:
                self._added.append(digest)

    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of all published pages, of the last band where there are several."""
        return tuple(self._page_of[self._told])

    def changes(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Hashes that came into the prefix cache and hashes that left it since the last call: (added, removed). Of
        several bands the last one's."""
        added, removed = tuple(self._added), tuple(self._removed)
        self._added, self._removed = [], []
        return added, removed

    # ----

    def _quarantined(self, matching: Callable[[Hashable], bool]) -> list[int]:
        return [p for p, o in self._owner.items() if self._state[p] is PageState.QUARANTINED and matching(o)]

    def _allocate(self, count: int, state: PageState, salt: bytes) -> tuple[int, ...] | None:
        if count > self.available:
            return None
        pages = []
        for _ in range(count):
            if not self._free:
                self._evict()
            page = self._free.pop()
            self._state[page], self._refs[page] = state, 1 if state is PageState.IN_USE else 0
            self.references += self._refs[page]
            pages.append(page)
        self._hand_over(pages, salt)
        return tuple(pages)

    def _hand_over(self, pages: Sequence[int], salt: bytes) -> None:
        """The pages belong to the tenant of this salt from now on. Those of another tenant are cleared first; otherwise
        slots that the request does not write, and a landing that stays incomplete, keep the other tenant's text."""
        foreign = [page for page in pages if self._salt_of.get(page, salt) != salt]
        if foreign:
            self._clear(foreign)
            self.cleared += len(foreign)
        self._salt_of.update(dict.fromkeys(pages, salt))

    def _evict(self) -> None:
        page, _ = self._cached.popitem(last=False)
        band, digest = self._hash_of.pop(page)
        del self._page_of[band][digest]
        if band == self._told:
            self._removed.append(digest)
        self._set_free(page)

    def _set_free(self, page: int) -> None:
        self._state[page], self._refs[page] = PageState.FREE, 0
        self._free.append(page)

    def _expect(self, page: int, state: PageState) -> None:
        if self._state[page] is not state:
            raise ValueError(f"page {page} is {self._state[page].value}, not {state.value}")
