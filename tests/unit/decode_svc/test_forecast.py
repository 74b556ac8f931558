"""The forecast of how many pages running requests need together equals a count step by step."""

from random import Random

from decode_svc.request.forecast import GrowingRequest, peak_growth
from engine.step.batch import pages_needed

PAGE = 4


def counted(growing: list[GrowingRequest]) -> int:
    """The forecast's oracle: let every request grow step by step and note the most pages."""
    most = 0
    for now in range(max(each.left for each in growing) + 1):
        more = sum(pages_needed(each.slots + now, PAGE) - each.pages for each in growing if each.left >= now)
        most = max(most, more - sum(each.pages - each.shared for each in growing if each.left < now))
    return most


def test_requests_that_end_make_room_for_those_that_go_on() -> None:
    short, long = GrowingRequest(4, 40, 10, 0), GrowingRequest(80, 8, 2, 0)
    assert peak_growth([long], PAGE) >= 20
    assert peak_growth([short, long], PAGE) <= 14
    shared = GrowingRequest(4, 40, 10, 10)
    assert peak_growth([shared, long], PAGE) > 19, "what others share stays"


def test_it_is_what_a_count_of_every_step_finds_up_to_the_rounding_of_last_pages() -> None:
    random = Random(1)
    for _ in range(200):
        growing = list[GrowingRequest]()
        for _ in range(random.randint(1, 12)):
            slots = random.randint(1, 60)
            growing.append(GrowingRequest(random.randint(1, 50), slots, pages_needed(slots, PAGE), 0))
        assert 0 <= peak_growth(growing, PAGE) - counted(growing) <= len(growing)
