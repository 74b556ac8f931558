"""The pages in which a prefill worker computes a prompt: all taken at once, shared through the prefix cache.

A prompt takes its pages when decode's Landing has come (step 3 of a request's life) and gives them back at its end
(step 9 of a request's life). Full pages are published as soon as they are computed, so that later prompts skip them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.pool.pages import PagePool
from engine.step.batch import pages_needed
from mesh.messages.hashing import block_hashes, cache_salt

FADES = 0.9  # weight of a prompt against the one behind it


@dataclass(slots=True)
class PromptPages:
    """The pages of one prompt, for every token of it."""

    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()  # block hashes of the full pages
    cached: int = 0  # tokens whose KV the prefix cache had
    ready: int = 0  # tokens among these that can be read before the first step, which makes the copies
    copies: tuple[tuple[int, int], ...] = ()  # (shared page, own copy) that the prompt's first step makes


class PrefillPages:
    def __init__(self, pool: PagePool, *, page_tokens: int, numerics: str) -> None:
        self._pool = pool
        self._page_tokens = page_tokens
        self._numerics = numerics
        self._fresh_tokens = self._taken_tokens = 0.0  # new tokens, and all, of prompts that took pages, the last most

    @property
    def available(self) -> int:
        """Pages that a prompt can take now."""
        return self._pool.available

    @property
    def total(self) -> int:
        return self._pool.pages

    @property
    def fresh(self) -> float:
        """The share of a prompt that no cache had, of those that took pages last: what those that wait will need."""
        return self._fresh_tokens / self._taken_tokens if self._taken_tokens else 1.0

    def needed(self, tokens: int) -> int:
        return pages_needed(tokens, self._page_tokens)

    def take(self, tokens: Sequence[int], salt: bytes, adapter: str = "") -> PromptPages | None:
        """Shared pages for the cached beginning of a prompt and new ones for the rest; None if the pool lacks room."""
        size, begin = self._page_tokens, cache_salt(salt, adapter)
        hashes = tuple(block_hashes(tokens, page_tokens=size, numerics=self._numerics, salt=begin))
        shared = self._pool.match(hashes)
        whole = len(shared) * size == len(tokens)  # the last row is computed again, in a copy of the last shared page
        if whole and not self._pool.available:  # no page is left for the copy: compute that whole page again in place
            self._pool.release(shared[-1:])
            shared, whole = shared[:-1], False
        fresh = self._pool.take(self.needed(len(tokens)) - len(shared) + whole, salt)
        if fresh is None:
            self._pool.release(shared)
            return None
        cached = len(tokens) - 1 if whole else len(shared) * size
        self._fresh_tokens = FADES * self._fresh_tokens + len(tokens) - cached
        self._taken_tokens = FADES * self._taken_tokens + len(tokens)
        if whole:
            ready = cached // size * size
            return PromptPages((*shared[:-1], *fresh), hashes, cached, ready, ((shared[-1], fresh[0]),))
        return PromptPages((*shared, *fresh), hashes, cached, cached)

    def copied(self, own: PromptPages) -> None:
        """The step that made the copies is over: give the shared pages back from which they were made."""
        self._pool.release([source for source, _ in own.copies])
        own.copies = ()

    def publish(self, own: PromptPages, done: int) -> None:
        """Let other prompts find the full pages among the first `done` tokens."""
        for page, digest in zip(own.pages, own.hashes[: done // self._page_tokens], strict=False):
            self._pool.publish(page, digest)

    def release(self, own: PromptPages) -> None:
        self._pool.release(own.pages + tuple(source for source, _ in own.copies))
