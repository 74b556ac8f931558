"""The pages in which a prefill worker computes a prompt, shared through the prefix cache.

A prompt takes its pages when decode's Landing has come (step 3 of a request's life) and gives them back at its end
(step 9 of a request's life). Full pages are published as soon as they are computed, so that later prompts skip them.

Where all layers of the model have windows, a prompt holds only the pages that it still reads or sends, and takes those
of its next step before it. All that it will hold at a time are promised to it at once, so it never waits for a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool, every_page
from engine.step.batch import pages_needed
from mesh.messages.hashing import block_hashes, cache_salt

FADES = 0.9  # weight of a prompt against the one behind it


@dataclass(slots=True)
class PromptPages:
    """The pages of one prompt: of every token, or, with windows, of those that are read, sent or computed next."""

    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()  # block hashes of the full pages
    cached: int = 0  # tokens whose KV the prefix cache had
    ready: int = 0  # tokens among these that can be read before the first step, which makes the copies
    copies: tuple[tuple[int, int], ...] = ()  # (shared page, own copy) that the prompt's first step makes
    salt: bytes = b""
    sent: int = 0  # index of the first page that is sent to decode
    gone: int = 0  # pages at the beginning that it does not hold (any more)
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
    def fresh(self) -> float:
        """The share of a prompt that no cache had, of those that took pages last: what those that wait will need."""
        return self._fresh_tokens / self._taken_tokens if self._taken_tokens else 1.0

    def needed(self, tokens: int, sent_tokens: int | None = None) -> int:
        """Pages that a prompt holds at a time. `sent_tokens`: decode gets all behind so many, and not only those that
        it will read."""
        most = self._horizon.most_pages(tokens, self._chunk_tokens)
        if sent_tokens is None:
            return most
        return max(most, pages_needed(tokens, self._page_tokens) - sent_tokens // self._page_tokens)

    def take(self, tokens: Sequence[int], salt: bytes, sent_tokens: int = 0, adapter: str = "") -> PromptPages | None:
        """Shared pages for the cached beginning of a prompt and new ones for the rest; None if the pool lacks room.
        Decode gets the pages behind `sent_tokens` tokens."""
        begin = cache_salt(salt, adapter)
        hashes = tuple(block_hashes(tokens, page_tokens=self._page_tokens, numerics=self._numerics, salt=begin))
        own = self._take(tokens, salt, sent_tokens, hashes, len(hashes))
        if own is None and len(hashes) * self._page_tokens == len(tokens):
            # perhaps no page was left for a copy of the last shared page: compute that whole page again in place
            own = self._take(tokens, salt, sent_tokens, hashes, len(hashes) - 1)
        if own is not None:
            self._fresh_tokens = FADES * self._fresh_tokens + len(tokens) - own.cached
            self._taken_tokens = FADES * self._taken_tokens + len(tokens)
        return own

    def _take(
        self, tokens: Sequence[int], salt: bytes, sent_tokens: int, hashes: tuple[bytes, ...], usable: int
    ) -> PromptPages | None:
        size, total = self._page_tokens, len(tokens)

        def first_read(count: int) -> int:
            return min(sent_tokens, size * self._horizon.first_page(min(count * size, total - 1))) // size

        shared = self._pool.match(hashes[:usable], first_read if self._horizon.window else every_page)
        whole = len(shared) * size == total  # the last row is computed again, in a copy of the last shared page
        lacking = pages_needed(total, size) - len(shared) + whole
        if self._horizon.window:
            promised = max(self.needed(total, sent_tokens) - len(held(shared)), int(whole))
            fresh = self._pool.take(int(whole), salt) if promised <= self.available else None
        else:
            promised, fresh = lacking, self._pool.take(lacking, salt)
        if fresh is None:
            self._pool.release(held(shared))
            return None
        promised -= len(fresh)
        self._promised += promised
        cached = total - 1 if whole else len(shared) * size
        ready = cached // size * size if whole else cached
        pages = (*shared[:-1], *fresh) if whole else (*shared, *fresh)
        copies = ((shared[-1], fresh[0]),) if whole else ()
        gone = shared.count(GONE)
        return PromptPages(pages, hashes, cached, ready, copies, salt, sent_tokens // size, gone, promised)

    def cover(self, own: PromptPages, done: int, stop: int) -> None:
        """Before a step computes the rows from `done` up to `stop`: give the pages back that no row reads any more and
        that decode does not get, and take those of the new rows."""
        if not self._horizon.window:
            return
        first = min(own.sent, self._horizon.first_page(done))
        if first > own.gone:
            self._pool.release(own.pages[own.gone : first])
            self._promise(own, first - own.gone)
            own.pages, own.gone = (GONE,) * first + own.pages[first:], first
        lacking = max(0, pages_needed(stop, self._page_tokens) - len(own.pages))
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
        full = done // self._page_tokens
        for page, digest in zip(own.pages[own.gone : full], own.hashes[own.gone : full], strict=True):
            self._pool.publish(page, digest)

    def release(self, own: PromptPages) -> None:
        self._promise(own, -own.promised)
        self._pool.release(own.held)

    def _promise(self, own: PromptPages, pages: int) -> None:
        own.promised += pages
        self._promised += pages
