"""The pages of a text that a model may still read, where layers have windows (`docs/protocol.md`, "Pages behind
windows").

A text's list of pages goes stretch by stretch: each stretch of `page_tokens` tokens has one page for each band of the
model's layers (engine/pool/bands.py). A row of a band with windows reads its own slot and those before it, as many as
the longest window shows. A request gives the pages of such bands that lie wholly before that back while it goes on.
`GONE` stands in their place in its list, so that the index of a page remains its place in the text."""

from collections.abc import Collection
from dataclasses import dataclass

from engine.pool.bands import LayerBands
from engine.step.batch import pages_needed

GONE = -1


@dataclass(frozen=True, slots=True)
class Horizon:
    window: int  # slots that a row may read in bands with windows, its own the last; 0: all
    page_tokens: int
    bands: int = 1  # pages of a stretch
    full: int = 0  # the last ones of them, which rows read from the text's beginning on though others have windows

    @classmethod
    def of(cls, bands: LayerBands, page_tokens: int) -> "Horizon":
        return cls(bands.window, page_tokens, bands.count, bands.full)

    @property
    def windowed(self) -> int:
        """The first pages of a stretch, which are given back; without a window none is."""
        return self.bands - self.full

    def first_page(self, slot: int) -> int:
        """Rule [behind]: index of the first stretch whose pages the row at this slot, or a later one, may read in bands
        with windows. Otherwise a request gives a page back that it still reads, and another one writes into it."""
        return max(0, slot + 1 - self.window) // self.page_tokens if self.window else 0

    def stretches(self, tokens: int) -> int:
        """How many stretches so many tokens take."""
        return pages_needed(tokens, self.page_tokens)

    def whole(self, tokens: int) -> int:
        """All pages of a text of so many tokens."""
        return self.bands * self.stretches(tokens)

    def most_pages(self, tokens: int, chunk: int) -> int:
        """Pages that a text of so many tokens holds at a time, when steps compute at most `chunk` of its rows."""
        return self.full * self.stretches(tokens) + self.windowed * self.most_stretches(tokens, chunk)

    def most_stretches(self, tokens: int, chunk: int) -> int:
        """Stretches of which such a text holds the pages of bands with windows at a time."""
        whole = self.stretches(tokens)
        return min(whole, self.stretches(self.window + chunk) + 1) if self.window else whole

    def longest_text(self, pages: int, chunk: int) -> int:
        """Tokens of the longest text for which there are so many pages; where a text of any length has enough of them,
        those of a text that keeps all of its pages."""
        whole = pages // self.bands * self.page_tokens
        if not self.full or not self.windowed:
            return whole
        of_windows = self.windowed * (self.stretches(self.window + chunk) + 1)
        return max(whole, (pages - of_windows) // self.full * self.page_tokens)

    def behind(self, first: int, stop: int) -> list[int]:
        """Rule [kept]: the indexes of the pages that nothing reads once the stretches from `first` up to `stop` lie
        behind the windows. Pages of bands without windows are not among them: otherwise they are written by another
        request and still read."""
        return [stretch * self.bands + band for stretch in range(first, stop) for band in range(self.windowed)]

    def landing(self, first_page: int, stop: int, first_windowed: int) -> list[bool]:
        """For each page of a text from index `first_page` up to `stop` whether it lands, where those of bands with
        windows land from the stretch `first_windowed` on."""
        return [
            index % self.bands >= self.windowed or index // self.bands >= first_windowed
            for index in range(first_page, stop)
        ]


def held(pages: Collection[int]) -> tuple[int, ...]:
    """The pages of a request's list that it still has."""
    return tuple(page for page in pages if page != GONE) if GONE in pages else tuple(pages)
