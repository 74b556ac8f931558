"""A pool whose pages lie apart in memory, and the bytes in it that nothing may change.

Each page is an allocation of its own: under AddressSanitizer a copy that leaves its page is reported at once. Without
it `check` finds every changed byte of the layers that are guarded."""

from collections.abc import Iterable, Sequence

import numpy as np

import baton_kernels
from mesh.messages.page_shape import PageShape
from tests.fuzz.cases import Wrong

_WORD = 8


class GuardedPool:
    fd = -1  # as of a pool that is closed: no process maps it

    def __init__(self, shape: PageShape, pages: int) -> None:
        self.shape, self.pages = shape, pages
        ramp = np.arange(shape.page_bytes, dtype=np.uint64)
        self._patterns = [((ramp * 31 + 7 * page + 1) % 251).astype(np.uint8) for page in range(pages)]
        self._memory = [pattern.copy() for pattern in self._patterns]
        self._views = [memoryview(memory) for memory in self._memory]  # type: ignore[arg-type]
        self._guarded: dict[tuple[int, int], bytes] = {}
        self._fresh = {
            (page, layer): bytes(self.view(page, layer, 1)) for page in range(pages) for layer in range(shape.layers)
        }
        self.reset()

    def reset(self) -> None:
        """All pages hold their pattern, and all are guarded."""
        for memory, pattern in zip(self._memory, self._patterns, strict=True):
            memory[:] = pattern
        self._guarded = dict(self._fresh)

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        begin, size = self._place(page, first_layer, layers)
        return self._views[page][begin : begin + size]

    def views(self, pages: Sequence[int], first_layer: int, layers: int) -> list[memoryview]:
        return [self.view(page, first_layer, layers) for page in pages]

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        begin, size = self._place(page, first_layer, layers)
        return int(baton_kernels.checksum(int(self._memory[page].ctypes.data) + begin, size, begin // _WORD))

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        return tuple(self.checksum(page, first_layer, layers) for page in pages)

    def close(self) -> None:
        pass

    # ---- guards

    def guard(self, page: int, layers: Iterable[int]) -> None:
        """The bytes that these layers hold now must stay."""
        for layer in layers:
            self._guarded[page, layer] = bytes(self.view(page, layer, 1))

    def release(self, page: int, layers: Iterable[int]) -> None:
        """These layers may be written."""
        for layer in layers:
            self._guarded.pop((page, layer), None)

    def check(self) -> None:
        for (page, layer), expected in self._guarded.items():
            if self.view(page, layer, 1) != expected:
                raise Wrong(f"layer {layer} of page {page} was written, and nothing may write it")

    def _place(self, page: int, first_layer: int, layers: int) -> tuple[int, int]:
        if not (0 <= page < self.pages and 0 <= first_layer < first_layer + layers <= self.shape.layers):
            raise IndexError(f"page {page}, layers {first_layer}+{layers} of {self.pages} x {self.shape.layers}")
        return self.shape.place(first_layer, layers)
