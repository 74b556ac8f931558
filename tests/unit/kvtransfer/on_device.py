"""Pools on a GPU as the tests see them: their bytes can be looked at and changed from the host.

Where no GPU is at hand the driver is a fake over the host's memory; where there is one, the real driver is used, but
for the two calls that CUDA refuses within one process: opening memory that the process itself exported."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch

import baton_kernels
from engine.cuda.device import find_gpu
from kvtransfer.cuda_driver import HANDLE_BYTES, CudaDriver, Driver, DriverError
from kvtransfer.device_pool import DevicePool
from kvtransfer.transfer import PageShape

_numbers = itertools.count(1)
_exported: dict[bytes, torch.Tensor] = {}


class FakeDriver:
    device = torch.device("cpu")

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def free(self, memory: torch.Tensor) -> None:
        _forget(memory)

    def export(self, memory: torch.Tensor) -> bytes:
        return _export(memory)

    def map(self, handle: bytes, nbytes: int) -> torch.Tensor:
        return _map(handle, nbytes)

    def unmap(self, memory: torch.Tensor) -> None: ...

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(
        self, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int], out: torch.Tensor
    ) -> torch.Tensor:
        rows = memory.view(-1, page_bytes)[:, first_byte : first_byte + out.shape[1]]
        out.copy_(rows[list(pages)])
        return _sums(out, first_byte)

    def write(
        self, block: torch.Tensor, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int]
    ) -> torch.Tensor:
        for row, page in zip(block, pages, strict=True):
            memory.view(-1, page_bytes)[page, first_byte : first_byte + len(row)] = row
        return _sums(block, first_byte)


class OneProcess(CudaDriver):
    def free(self, memory: torch.Tensor) -> None:
        _forget(memory)
        super().free(memory)

    def export(self, memory: torch.Tensor) -> bytes:
        super().export(memory)  # it can be
        return _export(memory)

    def map(self, handle: bytes, nbytes: int) -> torch.Tensor:
        return _map(handle, nbytes)

    def unmap(self, memory: torch.Tensor) -> None: ...


def _export(memory: torch.Tensor) -> bytes:
    handle = next(_numbers).to_bytes(HANDLE_BYTES, "big")
    _exported[handle] = memory
    return handle


def _map(handle: bytes, nbytes: int) -> torch.Tensor:
    if handle not in _exported or len(_exported[handle]) != nbytes:
        raise DriverError("no such memory")
    return _exported[handle]


def _forget(memory: torch.Tensor) -> None:
    for handle in [handle for handle, known in _exported.items() if known is memory]:
        del _exported[handle]


def _sums(block: torch.Tensor, first_byte: int) -> torch.Tensor:
    rows = [row.contiguous() for row in block]
    sums = [baton_kernels.checksum(row.data_ptr(), len(row), first_byte // 8) for row in rows]
    return torch.from_numpy(np.array(sums, np.uint64).view(np.int64))


@cache
def driver() -> Driver:
    return FakeDriver() if find_gpu().why_not else OneProcess()


class HostBytes:
    """Bytes of a tensor anywhere, used as a memoryview is."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def __bytes__(self) -> bytes:
        return self._memory.cpu().numpy().tobytes()

    def __len__(self) -> int:
        return len(self._memory)

    def __iter__(self) -> Iterator[int]:
        return iter(bytes(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes | HostBytes) and bytes(self) == bytes(other)

    def __getitem__(self, place: slice) -> "HostBytes":
        return HostBytes(self._memory[place])

    def __setitem__(self, place: slice, value: bytes) -> None:
        self._memory[place] = torch.frombuffer(bytearray(value), dtype=torch.uint8).to(self._memory.device)
        if self._memory.is_cuda:
            torch.cuda.synchronize()


class OpenPool(DevicePool):
    """Lets the tests in."""

    def __init__(self, shape: PageShape, pages: int) -> None:
        super().__init__(shape, pages, driver())

    @property
    def buffer(self) -> HostBytes:
        return HostBytes(self.memory)

    def view(self, page: int, first_layer: int, layers: int) -> HostBytes:  # type: ignore[override]
        offset, length = self.shape.place(first_layer, layers)
        begin = page * self.shape.page_bytes + offset
        return HostBytes(self.memory[begin : begin + length])
