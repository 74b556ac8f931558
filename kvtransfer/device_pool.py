"""Pages in a GPU's memory, and the copies that leave or enter them: each with its checksum in the same pass.

A GPU page has no bytes that the host could read, so transports between such pools move blocks: spans of several pages,
gathered into one buffer on the device and scattered from it. The pool carries what another process of this host needs
to map it in a sealed file of a few bytes, which is handed over like the memory of a pool in shared memory."""

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvtransfer.cuda_driver import HANDLE_BYTES, CudaDriver, Driver
from kvtransfer.pool import SEALS, check_shape
from kvtransfer.transfer import PageShape, Span

_LAYOUT = re.compile(r"gpu-(bf16|fp8)-(\d+)-(\d+)-v\d+")
_MASK = (1 << 64) - 1


class DevicePool:
    """A `Pool` on a GPU. Whoever makes it closes it."""

    def __init__(self, shape: PageShape, pages: int, driver: Driver | None = None) -> None:
        check_shape(shape, pages)
        self.shape, self.pages, self.driver = shape, pages, driver or CudaDriver()
        self.memory = self.driver.allocate(shape.page_bytes * pages)
        self.blocks = Blocks(shape, pages, self.memory)
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

    def checksum(self, page: int, first_layer: int, layers: int) -> int:
        _, sums = self.blocks.gather([Span(0, page, page, first_layer, layers)], of_targets=False)
        return sums[0]

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.driver.free(self.memory)


@dataclass(frozen=True, slots=True)
class Group:
    """Spans of the same layers: their bytes lie behind each other in one block."""

    places: tuple[int, ...]  # of the spans, among those that were asked for
    first_layer: int
    layers: int
    nbytes: int  # of each


class Blocks:
    """Copies between a pool's pages, ours or one that we mapped, and blocks."""

    def __init__(self, shape: PageShape, pages: int, memory: torch.Tensor) -> None:
        from baton_kernels.triton import PageShape as Tiles  # imports triton: only where a pool is on a GPU

        self._shape, self._pages, self._memory = shape, pages, memory
        self._tiles = Tiles(**tiles(shape))

    def gather(self, spans: Sequence[Span], *, of_targets: bool) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """One block for each group of spans, in `grouped`'s order, and the checksums in the spans'."""
        from baton_kernels import triton as kernels

        blocks, found = list[torch.Tensor](), list[torch.Tensor]()
        for group in grouped(spans, self._shape):
            pages = self._named(spans, group, of_targets)
            block = torch.empty((len(pages), group.nbytes), dtype=torch.uint8, device=self._memory.device)
            sums = torch.empty(len(pages), dtype=torch.int64, device=self._memory.device)
            kernels.gather(
                self._memory, self._tiles, pages, first_layer=group.first_layer, layers=group.layers, out=block, sums=sums
            )
            blocks.append(block)
            found.append(sums)
        return blocks, self._read(spans, found)

    def scatter(self, spans: Sequence[Span], blocks: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Blocks as `gather` makes them into the spans' target pages; the checksums of what was written."""
        from baton_kernels import triton as kernels

        found = list[torch.Tensor]()
        for group, block in zip(grouped(spans, self._shape), blocks, strict=True):
            pages = self._named(spans, group, True)
            sums = torch.empty(len(pages), dtype=torch.int64, device=self._memory.device)
            kernels.scatter(
                block, self._memory, self._tiles, pages, first_layer=group.first_layer, layers=group.layers, sums=sums
            )
            found.append(sums)
        return self._read(spans, found)

    def _named(self, spans: Sequence[Span], group: Group, of_targets: bool) -> torch.Tensor:
        """Page ids, none of which leaves the pool: one that came in a message is not trusted with a pointer."""
        ids = [spans[place].target if of_targets else spans[place].source for place in group.places]
        for page in ids:
            if not 0 <= page < self._pages:
                raise IndexError(f"page {page} of a pool of {self._pages}")
        return torch.tensor(ids, dtype=torch.int32).view(-1, 1).to(self._memory.device)

    def _read(self, spans: Sequence[Span], found: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Waits for the device."""
        sums = [0] * len(spans)
        for group, values in zip(grouped(spans, self._shape), found, strict=True):
            for place, value in zip(group.places, values.tolist(), strict=True):
                sums[place] = value & _MASK
        return tuple(sums)


def grouped(spans: Sequence[Span], shape: PageShape) -> Iterator[Group]:
    """By first layer and number of layers, in the order in which those come first. IndexError for layers not there."""
    order: dict[tuple[int, int], list[int]] = {}
    for place, span in enumerate(spans):
        if not 0 <= span.first_layer < span.first_layer + span.layers <= shape.layers:
            raise IndexError(f"{span} is outside pages of {shape.layers} layers")
        order.setdefault((span.first_layer, span.layers), []).append(place)
    for (first, layers), places in order.items():
        yield Group(tuple(places), first, layers, shape.place(first, layers)[1])


def tiles(shape: PageShape) -> dict[str, int | str]:
    """What the kernels must know of a page, from the layout's name and the bytes of a layer."""
    match = _LAYOUT.fullmatch(shape.layout)
    if match is None or len(shape.segments) != 1:
        raise ValueError(f"layout {shape.layout!r} of {len(shape.segments)} segments is none of a GPU's pages")
    kv_type, page_tokens, dim = match[1], int(match[2]), int(match[3])
    layers, layer_bytes = shape.segments[0]
    tile_bytes = page_tokens * (dim + 4 if kv_type == "fp8" else 2 * dim)
    if layer_bytes % (2 * tile_bytes):
        raise ValueError(f"layer_bytes is {layer_bytes}: layout {shape.layout!r} has tiles of {tile_bytes} bytes")
    heads = layer_bytes // (2 * tile_bytes)
    return {"layers": layers, "kv_heads": heads, "dim": dim, "page_tokens": page_tokens, "kv_type": kv_type}


def read_handle(fd: int) -> bytes:
    """What another process needs to map the pool, from the file that its owner handed over."""
    raw = os.pread(fd, HANDLE_BYTES + 1, 0)
    if len(raw) != HANDLE_BYTES:
        raise ValueError(f"the receiver handed over {len(raw)} bytes, a GPU pool's handle has {HANDLE_BYTES}")
    return raw


def check_spans(spans: Sequence[Span], shape: PageShape, source_pages: int, target_pages: int) -> None:
    for span in spans:
        inside = 0 <= span.source < source_pages and 0 <= span.target < target_pages
        if not inside or not 0 <= span.first_layer < span.first_layer + span.layers <= shape.layers:
            raise IndexError(f"{span} is outside pools of {source_pages} and {target_pages} pages")


def as_words(tensor: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """For tests: a block's bytes on the host."""
    words: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = tensor.cpu().numpy()
    return words
