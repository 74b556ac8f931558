"""Raw page bytes: copies past the caches with a checksum in the same pass, checksums, copies inside a pool.

The checksum is the sum over 64-bit words of word * key(i) modulo 2^64, i counted from the page's first word, so the
sums of a page's spans add up to the page's. All of this runs on the caller's thread and never waits for a step."""

import numpy as np

from baton_kernels.arrays import I64, U64, Array, buffer, pointer, rank, writable
from baton_kernels.library import KernelError, load


def scatter(dst_addresses: Array, src_addresses: Array, nbytes: int, key_words: Array, sums: Array) -> None:
    """Copies n spans of nbytes (a multiple of 8) between raw addresses; the caller guarantees that they are valid.

    The arrays are int64 [n]. key_words holds the index of each span's first word in its page; sums (uint64 [n])
    receives the checksums."""
    (n,) = rank("dst_addresses", dst_addresses, 1)
    _whole_words(nbytes)
    load().scatter(
        pointer("dst_addresses", dst_addresses, I64, (n,)),
        pointer("src_addresses", src_addresses, I64, (n,)),
        n,
        nbytes,
        pointer("key_words", key_words, I64, (n,)),
        writable("sums", sums, U64, (n,)),
    )


def checksums(addresses: Array, nbytes: int, key_word: int) -> Array:
    """`checksum` of n spans of one length at these addresses (int64 [n]): uint64 [n]."""
    (n,) = rank("addresses", addresses, 1)
    _whole_words(nbytes)
    sums, key_words = np.empty(n, U64), np.full(n, key_word, I64)
    load().scatter(
        None,
        pointer("addresses", addresses, I64, (n,)),
        n,
        nbytes,
        pointer("key_words", key_words, I64, (n,)),
        pointer("sums", sums, U64, (n,)),
    )
    return sums


def checksum(address: int, nbytes: int, key_word: int) -> int:
    """Checksum of nbytes (a multiple of 8) at a raw address; the first of them is word `key_word` of its page."""
    _whole_words(nbytes)
    result: int = load().checksum(address, nbytes, key_word)
    return result


def copy_page(pool: Array, src_offset: int, dst_offset: int, nbytes: int) -> None:
    """Copies bytes inside one pool."""
    last = max(src_offset, dst_offset) + nbytes
    if min(src_offset, dst_offset, nbytes) < 0 or last > pool.size:
        raise KernelError(
            f"src_offset, dst_offset: {nbytes} bytes from {src_offset} to {dst_offset} leave the pool of {pool.size}"
        )
    if not pool.flags.writeable:
        raise KernelError("pool: is read-only but is written to")
    load().copy(buffer("pool", pool, last), src_offset, dst_offset, nbytes)


def _whole_words(nbytes: int) -> None:
    if nbytes < 0 or nbytes % 8:
        raise KernelError(f"nbytes: {nbytes} is not a multiple of 8")
