"""The layout of a page: sizes, offsets and the name that two workers compare."""

import pytest

from engine.page_layout import PageLayout, PageSegment, check_copies

MODEL = PageSegment(6, 100, "tiles-32-64-v1", "a" * 64)
DRAFT = PageSegment(2, 30, "tiles-32-32-v1", "0123456789abcdef" + "f" * 48)


def test_a_page_holds_the_models_layers_and_behind_them_the_drafts() -> None:
    layout = PageLayout((MODEL, DRAFT))
    assert layout.sizes == ((6, 100), (2, 30))
    assert (layout.layers, layout.page_bytes) == (8, 660)
    assert [layout.first_byte(0), layout.first_byte(1)] == [0, 600]


def test_only_the_drafts_hash_is_part_of_the_name() -> None:
    assert PageLayout((MODEL,)).name == "tiles-32-64-v1"
    assert PageLayout((MODEL, DRAFT)).name == "tiles-32-64-v1+tiles-32-32-v1-0123456789abcdef"


@pytest.mark.parametrize("copy", [(0, 4), (4, 0), (-1, 0), (0, -1)])
def test_a_copy_from_or_to_a_page_outside_the_pool_is_refused(copy: tuple[int, int]) -> None:
    check_copies([(0, 3), (3, 0)], step=1, pages=4)
    with pytest.raises(ValueError, match=rf"step 7 copies page {copy[0]} to {copy[1]} of a pool of 4"):
        check_copies([(1, 2), copy], step=7, pages=4)
