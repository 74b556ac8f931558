"""The ledger of a worker's pages: after every step it checks the conservation law, which says that no page is lost.

The pool knows the state of each page and how often it is referred to (engine/pages.py); requests know the pages that
they hold. The law: every reference has a holder, every landing page has one landing, and each page is in one of five
states. What breaks it is a defect of the worker, which goes on: the log names the pages, and a metric counts."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.pages import PagePool, PageState

log = logging.getLogger("baton.engine")

MOST_NAMED = 8  # pages that the log names
OWNED = (PageState.LANDING, PageState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Holder:
    """Pages that belong to one request, or to a step that uses them."""

    who: str
    pages: Sequence[int]
    landing: bool = False  # a prefill worker may write them; False: each counts as one reference


Holders = Callable[[], Iterable[Holder]]


class Ledger:
    def __init__(self, pool: PagePool, holders: Holders) -> None:
        self._pool, self._holders = pool, holders
        self._known: list[str] = []  # what is wrong already
        self._broken = 0  # how often the law was found broken anew

    def check(self) -> None:
        """Compare the sums, which costs next to nothing; page by page only if they differ."""
        held, landing = 0, 0
        for holder in self._holders():
            held, landing = (
                held + len(holder.pages) * (not holder.landing),
                landing + len(holder.pages) * holder.landing,
            )
        if (held, landing) == (self._pool.references, self._pool.landing()):
            self._known = []
            return
        found = self.violations()
        if found != self._known:
            self._known, self._broken = found, self._broken + 1
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            log.error("the pages of this worker do not add up: %s%s", "; ".join(found[:MOST_NAMED]), more)

    def violations(self) -> list[str]:
        """The pages that do not add up, each with its state and who holds it."""
        held, landing, names = Counter[int](), Counter[int](), dict[int, list[str]]()
        for holder in self._holders():
            (landing if holder.landing else held).update(holder.pages)
            for page in holder.pages:
                names.setdefault(page, []).append(holder.who)
        counted = sum(self._pool.state(page) in (PageState.FREE, PageState.CACHED) for page in range(self._pool.pages))
        found = [] if counted == self._pool.available else [f"{self._pool.available} of {counted} pages can be taken"]
        for page in range(self._pool.pages):
            state, references = self._pool.state(page), self._pool.references_to(page)
            sound = (
                references == held[page]
                and (references > 0) == (state is PageState.IN_USE)
                and landing[page] == (state is PageState.LANDING)
                and (self._pool.owner(page) is not None) == (state in OWNED)
            )
            if not sound:
                holders = ", ".join(names.get(page, ["nobody"]))
                found.append(f"page {page} is {state.value} with {references} references, held by {holders}")
        return found

    def counts(self) -> dict[str, int]:
        """How often pages did not add up, each time in another way."""
        return {"ledger_broken": self._broken}
