"""The pages in which a prefill worker computes a prompt, shared through the prefix cache.

A prompt takes its pages when decode's Landing has come (step 3 of a request's life) and gives them back at its end
(step 9 of a request's life). Full pages are published as soon as they are computed, so that later prompts skip them.

Where layers of the model have windows, a prompt holds of those only the pages that it still reads or sends, and takes
the pages of its next step before it. All that it will hold at a time are promised to it at once, so it never waits for
a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.pool.bands import LayerBands
from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool, every_page
from mesh.messages.hashing import block_hashes, cache_salt

FADES = 0.9  # weight of a prompt against the one behind it


@dataclass(slots=True)
class PromptPages:
    """The pages of one prompt: of every token, or, with windows, of those that are read, sent or computed next."""

    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()  # block hashes of the full stretches
    cached: int = 0  # tokens whose KV the prefix cache had
    ready: int = 0  # tokens among these that can be read before the first step, which makes the copies
    copies: tuple[tuple[int, int], ...] = ()  # (shared page, own copy) that the prompt's first step makes
    salt: bytes = b""
    sent: int = 0  # the first stretch of which decode gets the pages of bands with windows
    gone: int = 0  # stretches at the beginning of which it does not hold those (any more)
    promised: int = 0  # pages that it may take besides those that it holds

    @property
    def held(self) -> tuple[int, ...]:
        """A page for each reference that the prompt has."""
        return held(self.pages) + tuple(source for source, _ in self.copies)


class PrefillPages:
    def __init__(self, pool: PagePool, *, horizon: Horizon, chunk_tokens: int, numerics: str) -> None:
        self._pool = pool
        self._horizon, self._page_tokens = horizon, horizon.page_tokens
        self._chunk_tokens = chunk_tokens
        self._numerics = numerics
        self._promised = 0  # pages that prompts may take besides those that they hold
        self._fresh_tokens = self._taken_tokens = 0.0  # new tokens, and all, of prompts that took pages, the last most

    @property
    def available(self) -> int:
        """Pages that a prompt can take now. With windows each reference counts as a page: one that prompts share does
        not become free when one of them gives it back."""
        pool = self._pool
        return pool.pages - pool.references - self._promised if self._horizon.window else pool.available

    @property
    def total(self) -> int:
        return self._pool.pages

    @property
    def bands(self) -> LayerBands:
        return self._pool.bands

    @property
    def fresh(self) -> float:
        """The share of a prompt that no cache had, of those that took pages last: what those that wait will need."""
        return self._fresh_tokens / self._taken_tokens if self._taken_tokens else 1.0

    def needed(self, tokens: int, sent_tokens: int | None = None) -> int:
        """Pages that a prompt holds at a time. `sent_tokens`: decode gets all behind so many, and not only those that
        it will read."""
        whole, most = self._horizon.stretches(tokens), self._horizon.most_stretches(tokens, self._chunk_tokens)
        if sent_tokens is not None:
            most = max(most, whole - sent_tokens // self._page_tokens)
        return self._horizon.full * whole + self._horizon.windowed * most

    def take(self, tokens: Sequence[int], salt: bytes, sent_tokens: int = 0, adapter: str = "") -> PromptPages | None:
        """Shared pages for the cached beginning of a prompt and new ones for the rest; None if the pool lacks room. Of
        bands with windows decode gets the pages behind `sent_tokens` tokens."""
        begin = cache_salt(salt, adapter)
        hashes = tuple(block_hashes(tokens, page_tokens=self._page_tokens, numerics=self._numerics, salt=begin))
        own = self._take(tokens, salt, sent_tokens, hashes, len(hashes))
        if own is None and len(hashes) * self._page_tokens == len(tokens):
            # perhaps no pages were left for copies of the last shared ones: compute that whole stretch again in place
            own = self._take(tokens, salt, sent_tokens, hashes, len(hashes) - 1)
        if own is not None:
            self._fresh_tokens = FADES * self._fresh_tokens + len(tokens) - own.cached
            self._taken_tokens = FADES * self._taken_tokens + len(tokens)
        return own

    def _take(
        self, tokens: Sequence[int], salt: bytes, sent_tokens: int, hashes: tuple[bytes, ...], usable: int
    ) -> PromptPages | None:
        size, total, bands = self._page_tokens, len(tokens), self._horizon.bands

        def first_read(count: int) -> int:
            return min(sent_tokens, size * self._horizon.first_page(min(count * size, total - 1))) // size

        shared = self._pool.match(hashes[:usable], first_read if self._horizon.window else every_page)
        found = len(shared) // bands * size
        copied = bands if found == total else 0  # the last row is computed again, in copies of the last shared pages
        lacking = self._horizon.whole(total) - len(shared) + copied
        if self._horizon.window:
            promised = max(self.needed(total, sent_tokens) - len(held(shared)), copied)
            fresh = self._pool.take(copied, salt) if promised <= self.available else None
        else:
            promised, fresh = lacking, self._pool.take(lacking, salt)
        if fresh is None:
            self._pool.release(held(shared))
            return None
        promised -= len(fresh)
        self._promised += promised
        cached = total - 1 if copied else found
        ready = cached // size * size if copied else cached
        pages = (*shared[: len(shared) - copied], *fresh)
        copies = tuple(zip(shared[len(shared) - copied :], fresh, strict=True)) if copied else ()
        gone = shared.count(GONE) // self._horizon.windowed
        return PromptPages(pages, hashes, cached, ready, copies, salt, sent_tokens // size, gone, promised)

    def cover(self, own: PromptPages, done: int, stop: int) -> None:
        """Before a step computes the rows from `done` up to `stop`: give the pages back that no row reads any more and
        that decode does not get, and take those of the new rows."""
        if not self._horizon.window:
            return
        first = min(own.sent, self._horizon.first_page(done))
        if indexes := self._horizon.behind(own.gone, first):
            pages = list(own.pages)
            self._pool.release([pages[index] for index in indexes])
            self._promise(own, len(indexes))
            for index in indexes:
                pages[index] = GONE
            own.pages, own.gone = tuple(pages), first
        lacking = max(0, self._horizon.whole(stop) - len(own.pages))
        taken = self._pool.take(lacking, own.salt)
        assert taken is not None, "the pages were promised"
        self._promise(own, -lacking)
        own.pages += taken

    def copied(self, own: PromptPages) -> None:
        """The step that made the copies is over: give the shared pages back from which they were made."""
        self._pool.release([source for source, _ in own.copies])
        own.copies = ()

    def publish(self, own: PromptPages, done: int) -> None:
        """Let other prompts find the full pages among the first `done` tokens."""
        bands, full = self._horizon.bands, done // self._page_tokens
        for index in range(own.gone * bands, full * bands):
            self._pool.publish(own.pages[index], own.hashes[index // bands], index % bands)

    def release(self, own: PromptPages) -> None:
        self._promise(own, -own.promised)
        self._pool.release(own.held)

    def _promise(self, own: PromptPages, pages: int) -> None:
        own.promised += pages
        self._promised += pages
