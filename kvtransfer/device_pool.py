"""Pages in a GPU's memory, and the blocks in which they leave and enter it: spans of several pages behind each other.

A GPU page has no bytes that the host could read, so transports between such pools move blocks, gathered and scattered
on the device, checksums in the same pass. The pool carries what another process of this host needs to map it in a
sealed file of a few bytes, which is handed over like the memory of a pool in shared memory."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kvtransfer.cuda_driver import HANDLE_BYTES, CudaDriver, Driver
from kvtransfer.pool import SEALS, check_shape
from kvtransfer.transfer import Span
from mesh.messages.page_shape import PageShape

BLOCK_BYTES = 64 * 1024 * 1024  # most bytes of spans that travel together
_MASK = (1 << 64) - 1


class DevicePool:
    """A `Pool` on a GPU. Its maker closes it."""

    def __init__(self, shape: PageShape, pages: int, driver: Driver | None = None) -> None:
        check_shape(shape, pages)
        self.shape, self.pages, self.driver = shape, pages, driver or CudaDriver()
        self.memory = self.driver.allocate(shape.page_bytes * pages)
        self.blocks = Blocks(self.driver, self.memory, shape, pages)
        self.fd = os.memfd_create("baton-gpu-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(self.fd, self.driver.export(self.memory))
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
        except BaseException:
            self.close()
            raise

    @property
    def buffer(self) -> torch.Tensor:
        return self.memory

    def view(self, page: int, first_layer: int, layers: int) -> memoryview:
        raise TypeError("pages on a GPU have no host memory: only cuda_ipc and nccl move them")

    def views(self, pages: Sequence[int], first_layer: int, layers: int) -> list[memoryview]:
        return [self.view(page, first_layer, layers) for page in pages]

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        return self.checksums([page], first_layer, layers)[0]

    def checksums(self, pages: Sequence[int], first_layer: int, layers: int) -> tuple[int, ...]:
        """Waits for the device, once."""
        spans = [Span(index, page, page, first_layer, layers) for index, page in enumerate(pages)]
        with self.driver.beside():
            return tuple(value for part in portions(spans, self.shape) for value in self.blocks.gather(part)[1])

    def clear(self, pages: Sequence[int]) -> None:
        """Waits for the device, once. The steps that used the pages are over, so their stream need not wait."""
        rows = self.memory.view(self.pages, self.shape.page_bytes)
        with self.driver.beside():
            for page in pages:
                rows[page].zero_()
            for page in pages[-1:]:
                rows[page, 0].item()

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.driver.free(self.memory)


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Spans of the same layers in several pages: their bytes lie behind each other in one block."""

    places: tuple[int, ...]  # indices of the spans in the caller's list
    first_byte: int  # offset of each span inside its page
    nbytes: int  # bytes of each span


class Blocks:
    """Copies between blocks and the pages of a pool, be it this worker's own or a mapped one."""

    def __init__(self, driver: Driver, memory: torch.Tensor, shape: PageShape, pages: int) -> None:
        self._driver, self._memory, self._shape, self._pages = driver, memory, shape, pages

    def gather(self, spans: Sequence[Span]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """Copy the spans' source pages into one block for each group, in the order of `grouped`. Returns the blocks,
        and the checksums in the order of the spans."""
        blocks, found = list[torch.Tensor](), list[torch.Tensor]()
        for group in grouped(spans, self._shape):
            pages = self._named([spans[place].source for place in group.places])
            block = self.room(group)
            found.append(self._driver.read(self._memory, self._shape.page_bytes, group.first_byte, pages, block))
            blocks.append(block)
        return blocks, self._sums(spans, found)

    def scatter(self, spans: Sequence[Span], blocks: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Copy blocks of `gather` into the spans' target pages. Returns the checksums of what is there now."""
        found = list[torch.Tensor]()
        for group, block in zip(grouped(spans, self._shape), blocks, strict=True):
            pages = self._named([spans[place].target for place in group.places])
            found.append(self._driver.write(block, self._memory, self._shape.page_bytes, group.first_byte, pages))
        return self._sums(spans, found)

    def room(self, group: PageGroup) -> torch.Tensor:
        return torch.empty((len(group.places), group.nbytes), dtype=torch.uint8, device=self._driver.device)

    def _named(self, pages: list[int]) -> list[int]:
        """The same pages, each checked to lie in the pool: page ids come in messages and become pointers."""
        for page in pages:
            if not 0 <= page < self._pages:
                raise IndexError(f"page {page} of a pool of {self._pages}")
        return pages

    def _sums(self, spans: Sequence[Span], found: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Checksums in the order of the spans. Waits for the device: when they are here, the copies are done."""
        sums = [0] * len(spans)
        for group, values in zip(grouped(spans, self._shape), found, strict=True):
            for place, value in zip(group.places, values.tolist(), strict=True):
                sums[place] = value & _MASK
        return tuple(sums)


def grouped(spans: Sequence[Span], shape: PageShape) -> Iterator[PageGroup]:
    """Group spans by first layer and number of layers, in the order in which each pair first occurs. IndexError for
    layers that pages of this shape do not have."""
    order: dict[tuple[int, int], list[int]] = {}
    for place, span in enumerate(spans):
        if not 0 <= span.first_layer < span.first_layer + span.layers <= shape.layers:
            raise IndexError(f"{span} is outside pages of {shape.layers} layers")
        order.setdefault((span.first_layer, span.layers), []).append(place)
    for (first, layers), places in order.items():
        yield PageGroup(tuple(places), *shape.place(first, layers))


def portions(spans: Sequence[Span], shape: PageShape, *, most: int = 1 << 30) -> Iterator[Sequence[Span]]:
    """Cut the list into parts of at most `BLOCK_BYTES` and `most` spans, but at least one span each."""
    begin = size = 0
    for index, span in enumerate(spans):
        length = shape.place(span.first_layer, span.layers)[1]
        if index > begin and (size + length > BLOCK_BYTES or index - begin >= most):
            yield spans[begin:index]
            begin, size = index, 0
        size += length
    if begin < len(spans):
        yield spans[begin:]


def read_handle(fd: int) -> bytes:
    """Read the memory handle from the file that the pool's owner handed over."""
    raw = os.pread(fd, HANDLE_BYTES + 1, 0)
    if len(raw) != HANDLE_BYTES:
        raise ValueError(f"the receiver handed over {len(raw)} bytes, a GPU pool's handle has {HANDLE_BYTES}")
    return raw


def check_spans(spans: Sequence[Span], shape: PageShape, source_pages: int, target_pages: int) -> None:
    """IndexError when one of the spans leaves its pool; then nothing is copied."""
    for span in spans:
        inside = 0 <= span.source < source_pages and 0 <= span.target < target_pages
        if not inside or not 0 <= span.first_layer < span.first_layer + span.layers <= shape.layers:
            raise IndexError(f"{span} is outside pools of {source_pages} and {target_pages} pages")
