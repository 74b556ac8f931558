"""Pages of prompts at prefill: all or none, shared once computed, and a copy where a shared page would be written."""

from engine.pool.horizon import Horizon
from engine.pool.pages import PagePool, PageState
from prefill_svc.pages import PrefillPages, PromptPages

TOKENS = tuple(range(10))


def pages_of(pool: PagePool) -> PrefillPages:
    return PrefillPages(pool, horizon=Horizon(0, 4), chunk_tokens=8, numerics="a")


def take(pages: PrefillPages, tokens: tuple[int, ...], salt: bytes = b"") -> PromptPages:
    own = pages.take(tokens, salt)
    assert own is not None
    return own


def test_a_prompt_takes_all_its_pages_or_none() -> None:
    pool = PagePool(3)
    pages = pages_of(pool)
    first = take(pages, tuple(range(5)))
    pages.publish(first, 5)
    before = pool.counts()
    assert pages.take(tuple(range(12)), b"") is None, "one page is shared, two are needed, one is free"
    assert pool.counts() == before
    pages.release(first)
    assert pool.counts().in_use == 0, "the failed prompt holds no reference to the shared page"


def test_full_pages_are_shared_once_they_are_computed() -> None:
    pages = pages_of(PagePool(8))
    first = take(pages, TOKENS)
    assert take(pages, TOKENS).cached == 0, "nothing is computed yet"
    pages.publish(first, 6)
    second = take(pages, TOKENS)
    assert second.cached == 4 and second.pages[0] == first.pages[0]
    assert not set(second.pages[1:]) & set(first.pages)


def test_prompts_with_another_salt_share_nothing() -> None:
    pages = pages_of(PagePool(8))
    pages.publish(take(pages, TOKENS, b"one tenant"), 10)
    assert take(pages, TOKENS, b"another tenant").cached == 0


def test_the_last_row_of_a_fully_cached_prompt_is_computed_in_a_copy_that_gives_its_source_back() -> None:
    pool = PagePool(8)
    pages = pages_of(pool)
    first = take(pages, TOKENS[:8])
    pages.publish(first, 8)
    second = take(pages, TOKENS[:8])
    ((source, target),) = second.copies
    assert second.cached == 7, "one row remains"
    assert source == first.pages[1] and second.pages == (first.pages[0], target) and pool.writable(target)
    pages.copied(second)
    pages.release(first)
    assert pool.state(source) is PageState.CACHED, "no prompt refers to it any more"


def test_a_prompt_that_ends_before_its_copy_is_made_gives_the_source_back_too() -> None:
    pool = PagePool(8)
    pages = pages_of(pool)
    first = take(pages, TOKENS[:8])
    pages.publish(first, 8)
    second = take(pages, TOKENS[:8])
    pages.release(second)
    pages.release(first)
    assert pool.counts().in_use == 0 and pool.counts().total == 8


def test_a_fully_cached_prompt_computes_its_last_page_again_when_no_page_is_left_for_a_copy() -> None:
    pool = PagePool(2)
    pages = pages_of(pool)
    first = take(pages, TOKENS[:8])
    pages.publish(first, 8)
    pages.release(first)
    again = take(pages, TOKENS[:8])
    assert again.copies == () and again.cached == 4 and pool.counts().in_use == 2


def windowed(pool: PagePool, window: int) -> PrefillPages:
    return PrefillPages(pool, horizon=Horizon(window, 4), chunk_tokens=8, numerics="a")


def test_with_windows_a_prompt_is_promised_what_it_holds_at_a_time_and_never_lacks_a_page() -> None:
    pool = PagePool(7)
    pages = windowed(pool, 6)
    text = tuple(range(400))
    own = pages.take(text, b"", 392)
    assert own is not None and own.held == () and own.promised == pages.needed(400) == 5 and pages.available == 2
    for done in range(0, 400, 8):
        pages.cover(own, done, done + 8)
        assert len(own.held) + own.promised == 5 and len(own.pages) == (done + 8) // 4
        pages.publish(own, done + 8)
    assert own.pages[:96] == (-1,) * 96 and pool.counts().in_use == 4
    pages.release(own)
    assert pool.counts().in_use == 0 and pages.available == 7


def test_a_prompt_whose_pages_others_share_does_not_lend_out_what_it_was_promised() -> None:
    pool = PagePool(8)
    pages = windowed(pool, 6)
    text = tuple(range(40))
    first = pages.take(text, b"", 32)
    assert first is not None and first.promised == 5
    pages.cover(first, 0, 8)
    pages.publish(first, 8)
    assert pages.available == 3 and pages.take((*text[:8], *range(50, 82)), b"", 32) is None, "5 more do not fit"
    pages.cover(first, 8, 16)
    assert pages.available == 3
    pages.release(first)
    other = pages.take((*text[:8], *range(50, 82)), b"", 32)
    assert other is not None and other.cached == 8 and len(other.held) == 2 and other.promised == 3


def test_a_prompt_keeps_the_pages_that_decode_gets() -> None:
    pool = PagePool(16)
    pages = windowed(pool, 6)
    own = pages.take(tuple(range(40)), b"", 8)
    assert own is not None and own.promised == 8
    for done in range(0, 40, 8):
        pages.cover(own, done, done + 8)
    assert own.gone == 2 and len(own.held) == 8
