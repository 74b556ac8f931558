"""The memory under a page pool: one sealed memfd, mapped, pages one behind the other.

Decode's pool is mapped a second time by the prefill workers of the same host (`attach`), which copy pages straight in;
with TCP, bytes are received into the same views. The seals guarantee every process that maps it that it never shrinks
(a write beyond the end of a file is a SIGBUS) and never grows. The descriptor travels over a socket, never by name."""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

import baton_kernels
from kvtransfer.transfer import Pool, Span
from mesh.messages.page_shape import PageShape

KEY_BYTES = 8  # a checksum is keyed by each 64-bit word's position in its page
ALIGNMENT = 64  # bytes; non-temporal stores need it, and every tile layout has it
_ROW = attrgetter("source", "target", "first_layer", "layers")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedPool:
    """A `Pool` that other processes of this host can map. Its maker closes it."""

    def __init__(self, shape: PageShape, pages: int, *, populate: bool = False) -> None:
        """With `populate` the kernel allots the memory now, so that no landing waits for page faults."""
        check_shape(shape, pages)
        fd = os.memfd_create("baton-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, shape.page_bytes * pages)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
            self._map(fd, shape, pages)
            if populate:
                self._memory.madvise(_MADV_POPULATE_WRITE)
        except BaseException:
            os.close(fd)
            raise

    def _map(self, fd: int, shape: PageShape, pages: int) -> None:
        self.shape, self.pages, self.fd = shape, pages, fd
        self._memory = mmap.mmap(fd, shape.page_bytes * pages)
        self.buffer = memoryview(self._memory)
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        return self.views((page,), first_layer, layers)[0]

    def views(self, pages: Sequence[int], first_layer: int, layers: int) -> list[memoryview]:
        starts, length = self._places(pages, first_layer, layers)
        return [self.buffer[start : start + length] for start in starts]

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        return self.checksums((page,), first_layer, layers)[0]

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        starts, length = self._places(pages, first_layer, layers)
        key = self.shape.place(first_layer, layers)[0] // KEY_BYTES
        return tuple(baton_kernels.checksums(np.array(starts, np.int64) + self.address, length, key).tolist())

    def clear(self, pages: Sequence[int]) -> None:
        starts, length = self._places(pages, 0, self.shape.layers)
        for start in starts:
            ctypes.memset(self.address + start, 0, length)  # other threads go on meanwhile

    def close(self) -> None:
        """Idempotent. The mapping goes with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.buffer = memoryview(b"")
            del self._memory

    def _places(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[list[int], int]:
        """Byte offsets of spans inside the pool, and their length."""
        shape = self.shape
        if self.fd < 0:
            raise ValueError("this page pool was closed")
        for page in pages:
            if not 0 <= page < self.pages:
                raise IndexError(f"page {page} of a pool of {self.pages}")
        if not 0 <= first_layer < first_layer + layers <= shape.layers:
            raise IndexError(f"layers {first_layer}+{layers} of a pool of {shape.layers}")
        (offset, length), page_bytes = shape.place(first_layer, layers), shape.page_bytes
        return [page * page_bytes + offset for page in pages], length


def attach(fd: int, shape: PageShape, pages: int) -> SharedPool:
    """Map a pool that another process made; takes `fd` over when it succeeds. Child processes do not inherit the
    mapping: they could write after this process is known to be dead."""
    check_shape(shape, pages)
    size, wanted = os.fstat(fd).st_size, shape.page_bytes * pages
    if size != wanted:
        raise ValueError(f"the pool has {size} bytes where {pages} pages of {shape.page_bytes} need {wanted}")
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise ValueError("the pool is not sealed against shrinking and growing: its owner is no baton worker")
    pool = SharedPool.__new__(SharedPool)
    pool._map(fd, shape, pages)
    pool._memory.madvise(mmap.MADV_DONTFORK)
    return pool


def page_addresses(pool: Pool) -> npt.NDArray[np.int64]:
    """The address of each page, valid as long as the pool is open."""
    if isinstance(pool, SharedPool):
        return pool.address + np.arange(pool.pages, dtype=np.int64) * pool.shape.page_bytes
    views = (pool.view(page, 0, pool.shape.layers) for page in range(pool.pages))
    return np.array([np.frombuffer(view, np.uint8).ctypes.data for view in views], np.int64)


def span_table(spans: Sequence[Span], source: Pool, target_pages: int) -> npt.NDArray[np.int64]:
    """Rows of (source page, target page, first layer, layers). IndexError when one leaves its pool: page ids come in
    messages and become pointers."""
    table = np.fromiter(chain.from_iterable(map(_ROW, spans)), np.int64, 4 * len(spans)).reshape(-1, 4)
    page, target, first, layers = table.T
    inside = (0 <= page) & (page < source.pages) & (0 <= target) & (target < target_pages)
    inside &= (0 <= first) & (0 < layers) & (first + layers <= source.shape.layers)
    for place, span in enumerate(spans):
        if span.behind and not all(0 <= page < source.pages for page in span.behind):
            inside[place] = False
    if not inside.all():
        raise IndexError(f"{spans[int(np.argmin(inside))]} is outside pools of {source.pages} and {target_pages} pages")
    return table


def check_shape(shape: PageShape, pages: int) -> None:
    sizes = [size for segment in shape.segments for size in (segment.layers, segment.layer_bytes)]
    if pages <= 0 or min(sizes, default=0) <= 0:
        raise ValueError(f"a pool of {pages} pages is empty: {shape}")
    for segment in shape.segments:
        if segment.layer_bytes % ALIGNMENT:
            size = f"layer_bytes is {segment.layer_bytes}"
            raise ValueError(f"{size}: a page's layer must be a multiple of {ALIGNMENT} bytes")


_MADV_POPULATE_WRITE = 23  # Linux 5.14; not named by Python's mmap
