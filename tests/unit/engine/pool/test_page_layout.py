"""The layout of a page: what a model's layers in it are called, and copies inside the pool."""

import pytest

from engine.pool.page_layout import check_copies, kv_segment
from mesh.messages.page_shape import KV, PageSegment


def test_a_models_layers_are_described_with_all_its_heads_and_the_beginning_of_its_hash() -> None:
    made = kv_segment("ab" * 32, layers=6, layer_bytes=100, tiles="tiles", dtype="bf16", heads=4, head_dim=16)
    assert made == PageSegment(KV, "ab" * 8, 6, 100, "tiles", "bf16", 4, 0, 4, 16)


@pytest.mark.parametrize("copy", [(0, 4), (4, 0), (-1, 0), (0, -1)])
def test_a_copy_from_or_to_a_page_outside_the_pool_is_refused(copy: tuple[int, int]) -> None:
    check_copies([(0, 3), (3, 0)], step=1, pages=4)
    with pytest.raises(ValueError, match=rf"step 7 copies page {copy[0]} to {copy[1]} of a pool of 4"):
        check_copies([(1, 2), copy], step=7, pages=4)
