"""The memory under a page pool: sealed, checked before it is mapped, never left behind."""

import contextlib
import fcntl
import os

import numpy as np
import pytest

from kvtransfer.pool import SharedPool, attach, page_addresses
from mesh.messages.page_shape import opaque_pages

SHAPE = opaque_pages((3, 1024), content="test")


@pytest.fixture
def pool():
    pool = SharedPool(SHAPE, 8)
    yield pool
    pool.close()


def test_a_pool_cannot_be_shrunk_grown_or_unsealed(pool):
    for size in (1, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(pool.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(pool.fd)


def test_views_are_the_pages_one_behind_the_other(pool):
    pool.view(2, 1, 2)[:] = b"\x07" * 2048
    flat = np.frombuffer(pool.buffer, np.uint8)
    assert np.flatnonzero(flat).tolist() == list(range(2 * 3072 + 1024, 3 * 3072))
    del flat


@pytest.mark.parametrize("place", [(8, 0, 1), (-1, 0, 1), (0, 2, 2), (0, -1, 1), (0, 0, 0)])
def test_a_place_outside_the_pool_is_an_error(pool, place):
    with pytest.raises(IndexError):
        pool.view(*place)
    with pytest.raises(IndexError):
        pool.checksum(*place)


def test_what_one_process_writes_the_other_sees(pool):
    other = attach(os.dup(pool.fd), SHAPE, 8)
    other.view(7, 2, 1)[:] = b"\x09" * 1024
    assert bytes(pool.view(7, 2, 1)) == b"\x09" * 1024 and other.address != pool.address
    other.close()


def test_a_child_does_not_inherit_an_attached_pool(pool):
    other = attach(os.dup(pool.fd), SHAPE, 8)
    inherited, address = dict[int, bool](), 0
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if not (first := line.split()[0]).endswith(":"):
                address = int(first.partition("-")[0], 16)
            elif line.startswith("VmFlags:"):
                inherited[address] = "dc" not in line.split()  # dc: do not copy on fork
    assert inherited[pool.address] and not inherited[other.address]
    other.close()


def test_a_pool_of_another_size_is_not_mapped(pool):
    with pytest.raises(ValueError, match="9 pages"):
        attach(pool.fd, SHAPE, 9)


def test_a_pool_that_may_shrink_is_not_mapped():
    fd = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8 * SHAPE.page_bytes)
    with pytest.raises(ValueError, match="sealed"):
        attach(fd, SHAPE, 8)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    with pytest.raises(ValueError, match="sealed"):
        attach(fd, SHAPE, 8)
    os.close(fd)


def test_layers_that_are_no_whole_cache_lines_are_refused():
    with pytest.raises(ValueError, match="layer_bytes"):
        SharedPool(opaque_pages((2, 1000), content="test"), 4)


@pytest.mark.parametrize(("layers", "pages"), [(0, 4), (4, 0), (-1, 4), (4, -1)])
def test_an_empty_pool_is_refused(layers, pages):
    with pytest.raises(ValueError, match="empty"):
        SharedPool(opaque_pages((layers, 1024), content="test"), pages)


def descriptors_of(file: os.stat_result) -> int:
    """How many descriptors of this process are open on the file; those of others come and go."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was the listing's own
            count += os.path.samestat(os.fstat(int(fd)), file)
    return count


def test_closing_gives_back_memory_and_descriptors_at_once():
    pool = SharedPool(SHAPE, 8, populate=True)
    pool.view(0, 0, 1)[:] = bytes(1024)
    mapped, file = f"{pool.address:x}-", os.fstat(pool.fd)
    assert descriptors_of(file) > 0, "control"
    with open("/proc/self/maps") as maps:
        assert mapped in maps.read(), "control"
    pool.close()
    pool.close()
    with open("/proc/self/maps") as maps:
        assert not any(line.startswith(mapped) for line in maps)
    assert descriptors_of(file) == 0
    with pytest.raises(ValueError, match="closed"):
        pool.view(0, 0, 1)


def test_a_view_that_somebody_still_holds_stays_valid():
    pool = SharedPool(SHAPE, 8)
    view = pool.view(1, 0, 3)
    pool.close()
    view[:] = b"\x05" * 3072
    assert set(view) == {5}


def test_checksums_are_those_of_the_definition(pool, checksum):
    pool.buffer[:] = np.random.default_rng(3).bytes(len(pool.buffer))
    for place in [(0, 0, 3), (5, 1, 1), (7, 1, 2)]:
        assert pool.checksum(*place) == checksum(pool.view(*place), SHAPE.before(place[1]))


def test_checksums_add_up_over_layers_and_tell_places_apart(pool):
    pool.buffer[:] = np.random.default_rng(1).bytes(len(pool.buffer))
    assert sum(pool.checksum(3, layer, 1) for layer in range(3)) % 2**64 == pool.checksum(3, 0, 3)
    pool.view(4, 0, 1)[:] = pool.view(4, 1, 1)
    assert pool.checksum(4, 0, 1) != pool.checksum(4, 1, 1)


def test_every_single_changed_bit_changes_the_checksum(pool):
    pool.buffer[:] = np.random.default_rng(2).bytes(len(pool.buffer))
    good, view = pool.checksum(0, 0, 1), pool.view(0, 0, 1)
    for bit in range(8 * 1024):
        view[bit // 8] ^= 1 << bit % 8
        assert pool.checksum(0, 0, 1) != good
        view[bit // 8] ^= 1 << bit % 8


def test_page_addresses_are_found_for_any_pool(pool):
    class Foreign:
        shape, pages = SHAPE, 8
        view = staticmethod(pool.view)

    assert page_addresses(Foreign()).tolist() == page_addresses(pool).tolist()


def test_a_span_may_reach_across_the_border_between_model_and_draft():
    pool = SharedPool(opaque_pages((3, 1024), (2, 256), content="test+draft"), 4)
    assert (pool.shape.layers, pool.shape.page_bytes) == (5, 3 * 1024 + 2 * 256)
    pool.buffer[:] = np.random.default_rng(4).bytes(len(pool.buffer))
    pool.view(1, 2, 2)[:] = bytes(1024 + 256)
    page = np.frombuffer(pool.buffer, np.uint8).reshape(4, -1)[1].copy()
    assert not page[2048:3328].any() and page[:2048].any() and page[3328:].any()
    assert sum(pool.checksum(1, layer, 1) for layer in range(5)) % 2**64 == pool.checksum(1, 0, 5)
    pool.close()
