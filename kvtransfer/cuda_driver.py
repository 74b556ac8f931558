"""The GPU calls that pools and transports use: memory that another process can map, and copies with checksums.

The driver's few calls go through ctypes, because torch's allocator cuts its blocks out of larger ones, whose handle
would open all of them. They act on the device's primary context, the one that torch uses. Copies are our kernels, on a
stream beside the engine's. Tests hand in another `Driver`, over the host's memory."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Protocol

import torch

HANDLE_BYTES = 64
_PEER_ACCESS = 1  # map another GPU's memory where the two GPUs can reach each other


class DriverError(OSError):
    """A driver call failed; the message says which and why."""


class Driver(Protocol):
    device: torch.device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Zeroed uint8 memory of its own allocation."""

    def free(self, memory: torch.Tensor) -> None: ...

    def export(self, memory: torch.Tensor) -> bytes:
        """A handle by which another process maps this memory for as long as both live."""

    def map(self, handle: bytes, nbytes: int) -> torch.Tensor:
        """DriverError when the handle is stale or the memory cannot be reached from this GPU."""

    def unmap(self, memory: torch.Tensor) -> None: ...

    def beside(self) -> AbstractContextManager[None]:
        """Inside the `with`, kernels that this thread launches run on a stream that no step waits for."""

    def read(
        self, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int], out: torch.Tensor
    ) -> torch.Tensor:
        """Copy spans of pages into out [pages, bytes]; returns their checksums, int64 [pages], on the device."""

    def write(
        self, block: torch.Tensor, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int]
    ) -> torch.Tensor:
        """Copy block [pages, bytes] into spans of pages; returns the checksums like `read`."""


class CudaDriver:
    """Drives the device that is torch's current one when the object is made."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, device=self.device)  # makes the primary context
        self._library, self._context = _library(), ctypes.c_void_p()
        retained = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), self.device.index)
        self._check("cuDevicePrimaryCtxRetain", retained)
        self._stream = torch.cuda.Stream(self.device, priority=-1)  # its few blocks go first, or pages wait for a step

    def allocate(self, nbytes: int) -> torch.Tensor:
        address = ctypes.c_uint64()
        with torch.cuda.device(self.device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
            memory = _tensor(address.value, nbytes, self.device)
            memory.zero_()
            torch.cuda.synchronize()
        return memory

    def free(self, memory: torch.Tensor) -> None:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            self._call("cuMemFree_v2", ctypes.c_uint64(memory.data_ptr()))

    def export(self, memory: torch.Tensor) -> bytes:
        handle = (ctypes.c_char * HANDLE_BYTES)()
        with torch.cuda.device(self.device):
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(memory.data_ptr()))
        return handle.raw

    def map(self, handle: bytes, nbytes: int) -> torch.Tensor:
        if len(handle) != HANDLE_BYTES:
            raise DriverError(f"a memory handle has {HANDLE_BYTES} bytes, this one {len(handle)}")
        address = ctypes.c_uint64()
        passed = _IpcMemoryHandle.from_buffer_copy(handle)
        with torch.cuda.device(self.device):
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), passed, ctypes.c_uint(_PEER_ACCESS))
            return _tensor(address.value, nbytes, self.device)

    def unmap(self, memory: torch.Tensor) -> None:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(memory.data_ptr()))

    @contextmanager
    def beside(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def read(
        self, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int], out: torch.Tensor
    ) -> torch.Tensor:
        from baton_kernels import triton as kernels  # only where there is a GPU

        sums = torch.empty(len(pages), dtype=torch.int64, device=self.device)
        kernels.read_spans(memory, page_bytes, first_byte, self._ids(pages), out=out, sums=sums)
        return sums

    def write(
        self, block: torch.Tensor, memory: torch.Tensor, page_bytes: int, first_byte: int, pages: Sequence[int]
    ) -> torch.Tensor:
        from baton_kernels import triton as kernels

        sums = torch.empty(len(pages), dtype=torch.int64, device=self.device)
        kernels.write_spans(block, memory, page_bytes, first_byte, self._ids(pages), sums=sums)
        return sums

    def _ids(self, pages: Sequence[int]) -> torch.Tensor:
        return torch.tensor(pages, dtype=torch.int32).to(self.device)

    def _call(self, name: str, *arguments: object) -> None:
        """A thread that has not used the device yet has no context of its own."""
        self._check("cuCtxSetCurrent", self._library.cuCtxSetCurrent(self._context))
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(f"{name} failed: {(text.value or b'unknown error').decode()} ({code})")


class _IpcMemoryHandle(ctypes.Structure):
    """A memory handle, which the driver takes by value."""

    _fields_ = [("bytes", ctypes.c_char * HANDLE_BYTES)]


class _ForeignMemory:
    """Memory that torch did not allocate, in the form in which torch adopts it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _tensor(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(_ForeignMemory(address, nbytes), device=device)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
