"""Pools on a GPU as the tests see them: their bytes can be looked at and changed from the host.

Where no GPU is at hand the driver is a fake over the host's memory; where there is one, the real driver is used, but
for the two calls that CUDA refuses within one process: opening memory that the process itself exported."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch

import baton_kernels
from engine.cuda.device import find_gpu
from kvtransfer.cuda_driver import HANDLE_BYTES, CudaDriver, Driver, DriverError
from kvtransfer.device_pool import DevicePool
from kvtransfer.nccl_library import UNIQUE_BYTES, Broken
from mesh.messages.page_shape import PageShape

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


class FakeCommunicators:
    """Communicators within this process: a block handed over is copied by whoever receives it. Joining waits for the
    other rank, for ever unless it is aborted. `deaf`: like NCCL's blocking communicators, it hears no abort then."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.joining = 0
        self._meetings: dict[bytes, _Meeting] = {}

    def available(self) -> str:
        return ""

    def unique(self) -> bytes:
        name = next(_numbers).to_bytes(UNIQUE_BYTES, "big")
        self._meetings[name] = _Meeting()
        return name

    def hear(self) -> None:
        """Ends the meetings that were left open while this end was deaf."""
        self.deaf = False
        for meeting in self._meetings.values():
            meeting.end()

    def pair(self, unique: bytes, rank: int, device: torch.device) -> "FakeCommunicator":
        return FakeCommunicator(self, self._meetings.setdefault(unique, _Meeting()), rank)


class _Meeting:
    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self.changed = threading.Condition()
        self.offered: torch.Tensor | None = None
        self.aborted = False

    def end(self) -> None:
        with self.changed:
            self.aborted = True
            self.changed.notify_all()


class FakeCommunicator:
    def __init__(self, communicators: FakeCommunicators, meeting: _Meeting, rank: int) -> None:
        self._communicators, self._meeting, self._rank = communicators, meeting, rank

    def join(self) -> None:
        self._communicators.joining += 1
        try:
            with self._meeting.changed:
                self._meeting.ranks.add(self._rank)
                self._meeting.changed.notify_all()
            self._wait(lambda: len(self._meeting.ranks) == 2, lambda: None)
        finally:
            self._communicators.joining -= 1

    def send(self, block: torch.Tensor) -> None:
        """Waits until it was taken."""
        self._wait(lambda: self._meeting.offered is None, lambda: self._put(block))
        self._wait(lambda: self._meeting.offered is not block, lambda: None)

    def receive(self, block: torch.Tensor) -> None:
        def take() -> None:
            assert self._meeting.offered is not None
            block.copy_(self._meeting.offered)
            self._put(None)

        self._wait(lambda: self._meeting.offered is not None, take)

    def abort(self) -> None:
        if not self._communicators.deaf:
            self._meeting.end()

    def _put(self, block: torch.Tensor | None) -> None:
        self._meeting.offered = block
        self._meeting.changed.notify_all()

    def _wait(self, ready: Callable[[], bool], act: Callable[[], None]) -> None:
        with self._meeting.changed:
            self._meeting.changed.wait_for(lambda: ready() or self._meeting.aborted)
            if self._meeting.aborted:
                raise Broken("aborted")
            act()
