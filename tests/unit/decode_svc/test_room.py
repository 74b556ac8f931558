"""Decides which request may have pages for a whole prompt, which one waits, and which ones it passes."""

import pytest

from decode_svc.request.requests import DecodePhase
from engine.pool.horizon import GONE
from mesh.messages.hashing import block_hashes
from mesh.messages.jobs import Token
from tests.unit.decode_svc.fakes import PAGE, Surroundings


def test_all_pages_or_none_after_what_running_requests_need_next() -> None:
    around = Surroundings(pages=3)
    for key, pages in ((1, [0, 1]), (2, [2, 3, 4])):  # the next token of the first needs a page
        running = around.add(key, phase=DecodePhase.RUNNING, pages=pages, filled=2 * PAGE)
        running.tokens.append(9)
    one = around.add(3)
    assert around.room.growth() == 1
    assert around.room.allows(one, 2) and not around.room.allows(one, 3)


def test_a_question_changes_nothing() -> None:
    around = Surroundings(pages=2)
    older, one = around.add(1, opened=1.0, passed=0), around.add(2, opened=2.0)
    for lacking in (1, 5):
        around.room.allows(one, lacking)
    assert (older.passed, one.passed) == (0, None)


def test_a_refusal_is_remembered_and_does_not_forget_who_passed() -> None:
    around = Surroundings()
    one, passed = around.add(1), around.add(2, passed=3)
    around.room.refuse(one)
    around.room.refuse(passed)
    assert (one.passed, passed.passed) == (0, 3)


def test_passing_is_counted_for_older_ones_that_wait_only() -> None:
    around = Surroundings()
    waits, never_asked = around.add(1, opened=1.0, passed=0), around.add(2, opened=1.0)
    younger, one = around.add(3, opened=9.0, passed=0), around.add(4, opened=5.0)
    landed = around.add(5, opened=1.0, passed=0, phase=DecodePhase.LANDING)
    around.room.pass_over(one)
    assert [r.passed for r in (waits, never_asked, younger, landed)] == [1, None, 0, 0]


@pytest.mark.parametrize("phase", [DecodePhase.OPEN, DecodePhase.LOCAL])
def test_after_eight_no_younger_request_passes_until_the_old_one_landed(phase: DecodePhase) -> None:
    around = Surroundings()
    old, young = around.add(1, opened=1.0, passed=8, phase=phase), around.add(2, opened=2.0)
    older = around.add(3, opened=0.5)
    assert not around.room.allows(young, 1)
    assert around.room.allows(older, 1)
    if phase is DecodePhase.LOCAL:
        old.enter(DecodePhase.RUNNING)
    else:
        old.enter(DecodePhase.LANDING)
    assert around.room.allows(young, 1)


def test_a_full_batch_takes_no_request() -> None:
    around = Surroundings(max_batch=2)
    for key in (1, 2):
        around.add(key, phase=DecodePhase.RUNNING, pages=[0, 0], filled=PAGE)
    assert not around.room.allows(around.add(9), 1)
    del around.requests[1]
    assert around.room.allows(around.requests[9], 1)


def test_shared_pages_are_taken_from_the_prefix_cache() -> None:
    around = Surroundings()
    one, again = around.add(1, tokens=2 * PAGE), around.add(2, tokens=2 * PAGE)
    again.tokens[:PAGE] = one.tokens[:PAGE]
    assert around.room.take_shared(one) == () and around.room.lands(one, (), 0) == [True, True]
    pages = around.pages.take(1, b"")
    assert pages is not None
    (digest, _) = block_hashes(one.tokens, page_tokens=PAGE, numerics="class a", salt=b"")
    around.pages.publish(pages[0], digest)
    assert around.room.take_shared(again) == pages and again.hashes == [digest]


def test_the_load_counts_those_that_wait_those_with_pages_and_the_rows_to_compute() -> None:
    around = Surroundings()
    around.add(1)  # its Ready has not come
    around.add(2, passed=0)
    around.add(3, phase=DecodePhase.LOCAL, tokens=10)  # it came during the step, and was not tried yet
    around.add(4, phase=DecodePhase.LANDING)
    around.add(5, phase=DecodePhase.LOCAL, passed=0)
    load = around.room.load(55.0)
    assert (load.opened, load.free_places) == (4, 0)
    assert (load.waiting, load.running, load.queued_tokens, load.tokens_per_second) == (2, 1, 18, 55.0)
    assert (load.free_pages, load.total_pages) == (16, 16)
    fresh = Surroundings()
    fresh.add(1, phase=DecodePhase.LOCAL, tokens=10)
    assert fresh.room.load(55.0).waiting == 0 and fresh.room.load(55.0).free_places > 0, "no second batch for its mates"


def taught(around: Surroundings, tokens: int) -> None:
    """Teach the room that eight answers of this length have ended."""
    for key in range(900, 908):
        one = around.add(key, phase=DecodePhase.RUNNING)
        one.tokens += [7] * tokens
        one.produced[tokens - 1] = Token(tokens - 1, 7)
        around.room.ended(one, 1.0)
        del around.requests[key]


def test_a_request_waits_if_running_ones_will_need_its_pages_before_they_end() -> None:
    around = Surroundings(pages=8)
    around.add(1, phase=DecodePhase.RUNNING, pages=[0, 1], filled=2 * PAGE, max_tokens=64)
    one = around.add(2, max_tokens=64)
    assert around.room.allows(one, 2), "nothing is known of answers yet"
    taught(around, 4 * PAGE)
    assert not around.room.allows(one, 2), "six pages each in the end"
    short = around.add(3, max_tokens=2)
    assert around.room.allows(short, 2)


def test_a_request_that_runs_alone_need_not_fit_what_is_expected() -> None:
    around = Surroundings(pages=8)
    taught(around, 100)
    assert around.room.allows(around.add(1, max_tokens=24), 2)


def test_preempted_requests_teach_nothing() -> None:
    around = Surroundings(pages=8)
    for key in range(20):
        one = around.add(key, phase=DecodePhase.RUNNING)
        one.tokens.append(7)
        one.produced[0], one.preempted = Token(0, 7), True
        around.room.ended(one, 1.0)
        del around.requests[key]
    assert around.room.load(1.0, 1.0).place_seconds == 0.0


def test_the_load_tells_how_soon_places_get_free() -> None:
    around = Surroundings(max_batch=2)
    around.add(1, phase=DecodePhase.LANDING, max_tokens=50)
    around.add(2, max_tokens=30)
    load = around.room.load(1.0, 0.1)
    assert (load.opened, load.free_places) == (1, 1)
    assert load.place_seconds == 2.0, "before answers have ended their limits count: 40 steps for each of two places"
    taught(around, 10)
    assert around.room.load(1.0, 0.1).place_seconds == 0.5
    around.add(3, passed=0)
    load = around.room.load(1.0, 0.1)
    assert (load.opened, load.free_places, load.place_seconds) == (2, 0, 1.0), "there is room for one only"


def test_a_request_that_has_its_pages_counts_as_waiting_no_more() -> None:
    around = Surroundings()
    around.add(1, passed=3, phase=DecodePhase.RUNNING)
    assert around.room.load(1.0).waiting == 0


def test_with_windows_a_request_needs_the_pages_that_it_holds_at_a_time() -> None:
    around = Surroundings(pages=16, window=6)
    one = around.add(1, tokens=100, max_tokens=50)
    assert around.room.largest_need(one) == around.room.lacking_here(one, ()) == -(-(6 + 8) // PAGE) + 1
    before, first = around.room.take_shared_before_landing(one)
    assert first == (100 - 6) // PAGE and before == (GONE,) * first
    assert around.room.lands(one, before, first) == [True] * (25 * 4 // PAGE - first)


def test_behind_a_landing_shared_pages_that_no_row_reads_are_given_back() -> None:
    around = Surroundings(pages=16, window=6)
    one = around.add(1, tokens=6 * PAGE, max_tokens=5)
    taken = around.pages.take(5, b"")
    assert taken is not None
    hashes = block_hashes(one.tokens, page_tokens=PAGE, numerics="class a", salt=b"")
    for page, digest in zip(taken, hashes, strict=False):
        around.pages.publish(page, digest)
    around.pages.release(taken)
    before, _ = around.room.take_shared_before_landing(one)
    first = (6 * PAGE - 6) // PAGE
    assert before == (GONE,) * first + taken[first:] and around.pages.references == 5 - first
