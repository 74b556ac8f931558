"""Pages of running requests: who gets one, who gives one, and which are found by others."""

from decode_svc.growth import Copies, Growth, victim
from decode_svc.request.requests import DecodePhase, DecodeRequest
from engine.pool.horizon import GONE
from mesh.messages.jobs import Reason
from tests.unit.decode_svc.fakes import PAGE, Surroundings


def growth(around: Surroundings) -> Growth:
    return Growth(
        around.requests, around.pages, horizon=around.room.horizon, numerics="class a", host=Releasing(around)
    )


class Releasing:
    """A host that gives the pages of dropped requests back, as the worker does."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def __getattr__(self, name: str) -> object:
        return getattr(self._around.host, name)

    def drop(self, request: DecodeRequest) -> None:
        self._around.host.drop(request)
        self._around.pages.release(request.pages)


def running(around: Surroundings, key: int, pages: int, *, tokens: int | None = None) -> DecodeRequest:
    """It has so many pages, and one token to compute."""
    one = around.add(key, opened=float(key), tokens=tokens or pages * PAGE, phase=DecodePhase.RUNNING)
    taken = around.pages.take(pages, b"")
    assert taken is not None
    one.pages, one.filled = list(taken), len(one.tokens) - 1
    return one


def test_a_request_gets_the_pages_that_its_slots_need() -> None:
    around = Surroundings()
    one, copies = running(around, 1, 2), Copies()
    assert growth(around).grow(one, 3 * PAGE + 1, copies) and len(one.pages) == 4 and copies == []


def test_an_older_request_takes_the_pages_of_the_youngest_one() -> None:
    around = Surroundings(pages=6)
    old, _, young = (running(around, key, 2) for key in (1, 2, 3))
    assert growth(around).grow(old, 2 * PAGE + 1, [])
    assert around.host.reported == [(3, Reason.PREEMPTED)] and around.host.dropped == [young]


def test_the_youngest_request_waits_and_the_host_hears_of_it() -> None:
    around = Surroundings(pages=4)
    _, young = running(around, 1, 2), running(around, 2, 2)
    assert not growth(around).grow(young, 2 * PAGE + 1, [])
    assert around.host.starving == [young] and around.host.dropped == []


def test_only_running_requests_that_are_younger_are_preempted() -> None:
    around = Surroundings()
    old, middle, young = (around.add(n, opened=float(n), phase=DecodePhase.RUNNING) for n in (1, 2, 3))
    around.add(4, opened=4.0, phase=DecodePhase.LANDING)
    everyone = list(around.requests.values())
    assert victim(old, everyone) is young and victim(middle, everyone) is young and victim(young, everyone) is None


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    around = Surroundings()
    one, mine = running(around, 1, 2), growth(around)
    around.pages.share(one.pages[1:])  # another request reads it
    shared, copies = one.pages[1], Copies()
    assert mine.grow(one, 2 * PAGE, copies)
    assert copies == [(shared, one.pages[1])] and one.pages[1] != shared


def test_no_request_is_preempted_for_a_draft_and_pages_of_drafts_go_first() -> None:
    around = Surroundings(pages=6)
    old, young, mine = running(around, 1, 2), running(around, 2, 2), growth(around)
    assert mine.spare(young, 5 * PAGE) == 4 * PAGE and around.host.dropped == []
    assert mine.spare(old, 3 * PAGE) == 2 * PAGE
    assert mine.grow(old, 2 * PAGE + 1, []) and around.host.dropped == [] and len(young.pages) == 3


def test_full_pages_of_accepted_tokens_are_published_once() -> None:
    around = Surroundings()
    one, mine = running(around, 1, 3), growth(around)
    one.filled = 2 * PAGE + 1
    assert mine.publish(one) == range(2) and mine.publish(one) == range(2, 2)
    assert around.pages.hashes() == tuple(one.hashes)


def test_pages_behind_all_windows_leave_the_request_one_by_one_and_keep_its_places() -> None:
    around = Surroundings(pages=8, window=6)
    pages = list(around.pages.take(5, b"") or ())
    one = around.add(1, phase=DecodePhase.RUNNING, pages=list(pages), filled=0)
    found = []
    for filled in range(5 * PAGE):
        one.filled = filled
        back = growth(around).behind(one)
        around.pages.release(back)
        found += [(filled, page) for page in back]
    assert found == [(9, pages[0]), (13, pages[1]), (17, pages[2])]
    assert one.pages == [GONE, GONE, GONE, *pages[3:]] and around.pages.references == 2
