"""Copies and checksums of raw page bytes."""

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference


@pytest.mark.parametrize("nbytes", [0, 8, 64, 120, 128, 136, 1024, 4104, 65536])
@pytest.mark.parametrize("shift", [0, 8, 3])
def test_scatter_copies_and_sums_in_one_pass(nbytes, shift, rng, bits):
    source = rng.integers(0, 256, 3 * nbytes + 64, np.uint8)
    target = np.zeros(3 * nbytes + 256, np.uint8)
    words, sums = np.array([0, 17, 100000], np.int64), np.zeros(3, np.uint64)
    starts = np.arange(3) * nbytes

    def compute():
        target[:] = 0xEE
        bk.scatter(
            target.ctypes.data + 64 + shift + starts[::-1].astype(np.int64),
            source.ctypes.data + starts,
            nbytes,
            words,
            sums,
        )
        return np.concatenate([target, sums.view(np.uint8)])

    bits.same(compute)
    for i, word in enumerate(words):
        part = source[starts[i] : starts[i] + nbytes]
        assert np.array_equal(target[64 + shift + starts[2 - i] :][:nbytes], part)
        assert (
            int(sums[i])
            == reference.checksum(part.tobytes(), int(word))
            == bk.checksum(part.ctypes.data, nbytes, int(word))
        )
    assert (target[: 64 + shift] == 0xEE).all() and (target[64 + shift + 3 * nbytes :] == 0xEE).all()


def test_checksums_of_spans_add_up_to_the_page(rng):
    page = rng.integers(0, 2**63, 4096).astype(np.uint64)
    at = page.ctypes.data
    whole = bk.checksum(at, page.nbytes, 0)
    parts = [bk.checksum(at + 8 * a, 8 * (b - a), a) for a, b in ((0, 700), (700, 701), (701, 4096))]
    assert sum(parts) % 2**64 == whole


def test_checksums_of_many_spans_are_those_of_each(rng, bits):
    nbytes, word = 4096 + 8, 7
    source = rng.integers(0, 256, 64 * nbytes).astype(np.uint8)
    starts = rng.permutation(64) * nbytes
    found = bits.same(lambda: bk.checksums(source.ctypes.data + starts, nbytes, word))
    assert found.tolist() == [reference.checksum(source[at : at + nbytes].tobytes(), word) for at in starts]
    assert bk.checksums(starts[:0], nbytes, word).tolist() == []
    with pytest.raises(bk.KernelError, match="nbytes"):
        bk.checksums(source.ctypes.data + starts, 12, word)


def test_any_changed_bit_and_any_moved_word_changes_the_checksum(rng):
    page = rng.integers(0, 2**63, 64).astype(np.uint64)
    whole = bk.checksum(page.ctypes.data, page.nbytes, 3)
    for word in range(64):
        for bit in (0, 31, 63):
            changed = page.copy()
            changed[word] ^= np.uint64(1 << bit)
            assert bk.checksum(changed.ctypes.data, page.nbytes, 3) != whole
        assert bk.checksum(np.roll(page, word + 1).ctypes.data, page.nbytes, 3) != whole or word == 63
    assert bk.checksum(page.ctypes.data, page.nbytes, 4) != whole


def test_copy_page_stays_inside_the_pool(rng):
    pool = rng.integers(0, 256, 4096, np.uint8)
    before = pool.copy()
    bk.copy_page(pool, 1024, 2048, 1024)
    assert np.array_equal(pool[2048:3072], before[1024:2048]) and np.array_equal(pool[:2048], before[:2048])
    for wrong in ((0, 3073, 1024), (-8, 0, 8), (4096, 0, 8)):
        with pytest.raises(bk.KernelError, match="pool"):
            bk.copy_page(pool, *wrong)
    with pytest.raises(bk.KernelError, match="nbytes"):
        bk.checksum(pool.ctypes.data, 12, 0)
