"""The ledger of a worker's pages: after every step it checks the conservation law, which says that no page is lost.

The pool knows the state of each page and how often it is referred to (engine/pool/pages.py); requests know the pages
that they hold. The law: every reference has a holder, every landing or quarantined page has one writer, and each page
is in one of five states. What breaks it is a defect of the worker, which goes on: the log names the pages, and a metric
counts. Gateways ask for the ledger when a person looks at pages (mesh/sessions/page_reports.py)."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from engine.pool.pages import PagePool, PageState
from mesh.messages.reports import PageHolder

log = logging.getLogger("baton.engine")

MOST_NAMED = 8  # pages that the log names
OWNED = (PageState.LANDING, PageState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Holder:
    """Pages that belong to one request, or to a step that uses them."""

    what: str  # what holds them, with its phase
    pages: Sequence[int]
    state: PageState = PageState.IN_USE  # then each page counts as one reference; else a prefill worker may write them
    request: int = 0  # id of the request; 0: a step
    attempt: int = 0
    writer: int = 0  # incarnation of the prefill worker that may write them; 0: none
    why: str = ""  # why they are quarantined
    since_seconds: float | None = None  # when the holder got them, on this worker's clock; None: not known

    @property
    def who(self) -> str:
        return f"request {self.request}, {self.what}" if self.request else self.what

    def described(self, now: float) -> PageHolder:
        """The holder as gateways learn of it."""
        seconds = -1.0 if self.since_seconds is None else max(0.0, now - self.since_seconds)
        state, count = self.state.value, len(self.pages)
        return PageHolder(self.what, state, self.request, self.attempt, self.writer, self.why, seconds, count)


Holders = Callable[[], Iterable[Holder]]


class Ledger:
    def __init__(self, pool: PagePool, holders: Holders) -> None:
        self._pool, self._holders, self.pages = pool, holders, pool.pages
        self._known: list[str] = []  # what is wrong already
        self._broken = 0  # how often the law was found broken anew

    def check(self) -> None:
        """Compare the sums, which costs next to nothing; page by page only if they differ."""
        held = dict.fromkeys(PageState, 0)
        for holder in self._holders():
            held[holder.state] += len(holder.pages)
        counts = self._pool.counts()
        sums = held[PageState.IN_USE], held[PageState.LANDING], held[PageState.QUARANTINED]
        if sums == (self._pool.references, counts.landing, counts.quarantined):
            self._known = []
            return
        found = self.violations()
        if found != self._known:
            self._known, self._broken = found, self._broken + 1
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            log.error("the pages of this worker do not add up: %s%s", "; ".join(found[:MOST_NAMED]), more)

    def violations(self) -> list[str]:
        """The pages that do not add up, each with its state and who holds it."""
        held, names = {state: Counter[int]() for state in PageState}, dict[int, list[str]]()
        for holder in self._holders():
            held[holder.state].update(holder.pages)
            for page in holder.pages:
                names.setdefault(page, []).append(holder.who)
        counted = sum(self._pool.state(page) in (PageState.FREE, PageState.CACHED) for page in range(self._pool.pages))
        found = [] if counted == self._pool.available else [f"{self._pool.available} of {counted} pages can be taken"]
        for page in range(self._pool.pages):
            state, references = self._pool.state(page), self._pool.references_to(page)
            sound = (
                references == held[PageState.IN_USE][page]
                and (references > 0) == (state is PageState.IN_USE)
                and all(held[owned][page] == (state is owned) for owned in OWNED)
                and (self._pool.owner(page) is not None) == (state in OWNED)
            )
            if not sound:
                holders = ", ".join(names.get(page, ["nobody"]))
                found.append(f"page {page} is {state.value} with {references} references, held by {holders}")
        return found

    # ---- what a gateway asks for: PageBook

    def states(self, first: int, stop: int) -> list[str]:
        return self._pool.states(first, stop)

    def sums(self) -> dict[str, int]:
        return asdict(self._pool.counts())

    def held(self) -> list[Holder]:
        return list(self._holders())

    def faults(self) -> tuple[str, ...]:
        """Pages that did not add up at the last check; not all, where they are many."""
        return tuple(self._known[:MOST_NAMED])

    def counts(self) -> dict[str, int]:
        """How often pages did not add up, each time in another way, and pages that were cleared for another tenant."""
        return {"ledger_broken": self._broken, "cleared": self._pool.cleared}
