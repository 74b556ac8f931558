"""The receiver's offer over RDMA is checked before it becomes addresses; spans are joined only where they may be."""

import random
import struct

import numpy as np
import pytest

from kvtransfer.frames import Malformed
from kvtransfer.rdma_frames import (
    MOST_METADATA_BYTES,
    MOST_REGIONS,
    PageRegion,
    RdmaOffer,
    RegionPages,
    joined_runs,
    page_regions,
    read_offer,
)

OFFER = RdmaOffer((PageRegion(1 << 20, 3), PageRegion(9 << 20, 2)), 1 << 30, b"metadata")


def reading(raw):
    """Takes bytes from these; a call for more than there are fails as a closed connection does."""
    left = bytearray(raw)

    def take(count):
        if count > len(left):
            raise Malformed("closed")
        piece = bytes(left[:count])
        del left[:count]
        return piece

    return take


def test_an_offer_is_read_as_it_was_packed():
    assert read_offer(reading(OFFER.pack()), 5, 4096) == OFFER


def changed(at, layout, value):
    raw = bytearray(OFFER.pack())
    struct.pack_into(layout, raw, at, value)
    return bytes(raw)


HEAD = 24
BAD = {
    "another magic": b"XOFF" + OFFER.pack()[4:],
    "another version": changed(4, "<H", 9),
    "no region": changed(8, "<I", 0),
    "too many regions": changed(8, "<I", MOST_REGIONS + 1),
    "no metadata": changed(12, "<I", 0),
    "too much metadata": changed(12, "<I", MOST_METADATA_BYTES + 1),
    "a probe at zero": changed(16, "<Q", 0),
    "a probe beyond all memory": changed(16, "<Q", (1 << 64) - 8),
    "a region at zero": changed(HEAD, "<Q", 0),
    "a region beyond all memory": changed(HEAD, "<Q", (1 << 63) - 4096),
    "more pages than the welcome names": changed(HEAD + 8, "<Q", 4),
    "fewer pages": changed(HEAD + 8, "<Q", 2),
    "pages whose bytes overflow": changed(HEAD + 8, "<Q", (1 << 64) - 2),
    "cut off": OFFER.pack()[:-1],
}


@pytest.mark.parametrize("what", BAD)
def test_an_offer_of_something_else_is_refused(what):
    with pytest.raises(Malformed):
        read_offer(reading(BAD[what]), 5, 4096)


def test_nothing_is_read_for_an_offer_that_names_too_much():
    asked = []

    def take(count):
        asked.append(count)
        return reading(BAD["too much metadata"])(count)

    with pytest.raises(Malformed):
        read_offer(take, 5, 4096)
    assert asked == [HEAD]


def test_a_pool_is_registered_in_regions_of_whole_pages():
    assert page_regions(1000, 7, 100, most_bytes=350) == (
        PageRegion(1000, 3),
        PageRegion(1300, 3),
        PageRegion(1600, 1),
    )
    assert page_regions(0, 2, 1000, most_bytes=10) == (PageRegion(0, 1), PageRegion(1000, 1))
    pages = RegionPages.of(page_regions(1000, 7, 100, most_bytes=350), 100)
    every = np.arange(7, dtype=np.int64)
    assert pages.pages == 7
    assert pages.addresses(every).tolist() == list(range(1000, 1700, 100))
    assert pages.regions(every).tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_an_offer_of_very_many_pages_takes_no_memory():
    """A peer states the number of pages; a table with an entry for each would take terabytes here."""
    many = (1 << 56) - 1
    offer = RdmaOffer((PageRegion(1 << 20, many), PageRegion(1 << 62, 1)), 1 << 30, b"metadata")
    pages = RegionPages.of(read_offer(reading(offer.pack()), many + 1, 64).regions, 64)
    assert pages.pages == 1 << 56
    assert pages.addresses(np.array([many - 1, many], np.int64)).tolist() == [(1 << 20) + 64 * (many - 1), 1 << 62]


def test_joined_pieces_copy_the_same_bytes_and_none_lies_in_two_regions():
    for seed in range(200):
        drawn = random.Random(seed)
        count = drawn.randint(1, 12)
        sizes = np.array([drawn.choice((64, 128)) for _ in range(count)], np.int64)
        ends = []
        for _ in range(2):
            steps = sizes[:-1] + np.array([drawn.choice((0, 0, 64)) for _ in range(count - 1)], np.int64)
            ends.append(np.concatenate([[4096], 4096 + np.cumsum(steps)]).astype(np.int64))
        apart = np.array([drawn.random() < 0.2 for _ in range(count - 1)], bool)
        pieces = [row.tolist() for row in joined_runs(ends[0], ends[1], sizes, apart)]
        moves = [(s + i, t + i) for s, t, size in zip(*pieces, strict=True) for i in range(size)]
        spans = zip(ends[0].tolist(), ends[1].tolist(), sizes.tolist(), strict=True)
        assert moves == [(s + i, t + i) for s, t, size in spans for i in range(size)], seed
        begins = set(pieces[0])
        assert all(ends[0][1:][apart][i] in begins for i in range(int(apart.sum()))), seed
        together = sum(
            not apart[i] and ends[0][i + 1] == ends[0][i] + sizes[i] and ends[1][i + 1] == ends[1][i] + sizes[i]
            for i in range(count - 1)
        )
        assert len(pieces[0]) == count - together, seed
