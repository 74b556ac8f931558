"""Every kind of pool clears the pages that it is given, wholly, and no other byte."""

import pytest

from kvtransfer.memory import MemoryPool
from kvtransfer.pool import SharedPool
from kvtransfer.transfer import Pool
from mesh.messages.page_shape import opaque_pages
from tests.unit.kvtransfer.on_device import OpenPool

SHAPE = opaque_pages((3, 1024), (2, 256), content="test")
PAGES = 5


def pool_of(kind: str) -> Pool:
    return {"shared": SharedPool, "memory": MemoryPool, "device": OpenPool}[kind](SHAPE, PAGES)


@pytest.mark.parametrize("kind", ["shared", "memory", "device"])
def test_cleared_pages_are_zero_and_their_neighbours_stay_as_they_are(kind: str) -> None:
    pool = pool_of(kind)
    for page in range(PAGES):
        pool.view(page, 0, SHAPE.layers)[:] = bytes([page + 1]) * SHAPE.page_bytes
    pool.clear([3, 1])
    for page in range(PAGES):
        wanted = bytes(SHAPE.page_bytes) if page in (1, 3) else bytes([page + 1]) * SHAPE.page_bytes
        assert bytes(pool.view(page, 0, SHAPE.layers)) == wanted
    pool.clear([])


@pytest.mark.parametrize("kind", ["shared", "memory", "device"])
def test_a_new_pool_is_zero(kind: str) -> None:
    pool = pool_of(kind)
    assert all(bytes(pool.view(page, 0, SHAPE.layers)) == bytes(SHAPE.page_bytes) for page in range(PAGES))


def test_a_page_outside_the_pool_is_not_cleared() -> None:
    with pytest.raises(IndexError):
        SharedPool(SHAPE, PAGES).clear([PAGES])
