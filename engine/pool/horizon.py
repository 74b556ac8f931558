"""The pages of a text that a model may still read, where all its layers have windows (`docs/protocol.md`, "Pages behind
all windows").

A row reads its own slot and those before it, as many as the longest window shows. A request gives the pages that lie
wholly before that back while it goes on. `GONE` stands in their place in its list, so that the index of a page remains
its place in the text."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.step.batch import pages_needed

GONE = -1


@dataclass(frozen=True, slots=True)
class Horizon:
    window: int  # slots that a row may read, its own the last; 0: all
    page_tokens: int

    def first_page(self, slot: int) -> int:
        """Rule [behind]: index of the first page that the row at this slot, or a later one, may read. Otherwise a
        request gives a page back that it still reads, and another one writes into it."""
        return max(0, slot + 1 - self.window) // self.page_tokens if self.window else 0

    def most_pages(self, tokens: int, chunk: int) -> int:
        """Pages that a text of so many tokens holds at a time, when steps compute at most `chunk` of its rows."""
        whole = pages_needed(tokens, self.page_tokens)
        return min(whole, pages_needed(self.window + chunk, self.page_tokens) + 1) if self.window else whole


def held(pages: Iterable[int]) -> tuple[int, ...]:
    """The pages of a request's list that it still has."""
    return tuple(page for page in pages if page != GONE)
