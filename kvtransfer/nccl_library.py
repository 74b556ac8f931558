"""Two-rank communicators of NCCL, through ctypes: the library that torch has loaded already, never a second one.

One communicator joins one prefill with one decode worker: windows, growing and shrinking would be collective. A send
that waits for a peer that died ends only by `abort`, from any thread. Tests hand in another `Fabric`."""

import ctypes
from functools import cache
from threading import Lock
from typing import Protocol

import torch

UNIQUE_BYTES = 128
_UINT8 = 1


class Broken(OSError):
    """The communicator was aborted, or a call failed."""


class Communicator(Protocol):
    def send(self, block: torch.Tensor) -> None:
        """Returns when the block may change. Broken when it was aborted meanwhile."""

    def receive(self, block: torch.Tensor) -> None:
        """Returns when the block is filled."""

    def abort(self) -> None:
        """Idempotent: ends what waits, and the communicator."""


class Fabric(Protocol):
    def available(self) -> str:
        """Empty when usable here, else the reason why not."""

    def unique(self) -> bytes:
        """Names a communicator that does not exist yet; a secret between its two ranks."""

    def join(self, unique: bytes, rank: int, device: torch.device) -> Communicator:
        """Waits for the other rank."""


class Nccl:
    def available(self) -> str:
        try:
            _library()
        except (OSError, RuntimeError, AssertionError) as error:  # what torch says without CUDA
            return f"torch brings no NCCL here ({error})"
        return ""

    def unique(self) -> bytes:
        unique = _Unique()
        _call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def join(self, unique: bytes, rank: int, device: torch.device) -> Communicator:
        handle = ctypes.c_void_p()
        named = _Unique.from_buffer_copy(unique)
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # a thread that has not used the device yet has no context
            _call("ncclCommInitRank", ctypes.byref(handle), ctypes.c_int(2), named, ctypes.c_int(rank))
            return _Pair(handle, 1 - rank)


class _Pair:
    def __init__(self, handle: ctypes.c_void_p, peer: int) -> None:
        self._handle, self._peer = handle, peer
        self._stream = torch.cuda.Stream(priority=-1)
        self._turn, self._over = Lock(), False

    def send(self, block: torch.Tensor) -> None:
        self._pass("ncclSend", block)

    def receive(self, block: torch.Tensor) -> None:
        self._pass("ncclRecv", block)

    def abort(self) -> None:
        with self._turn:
            if not self._over:
                self._over = True
                _call("ncclCommAbort", self._handle)

    def _pass(self, call: str, block: torch.Tensor) -> None:
        with torch.cuda.device(block.device), torch.cuda.stream(self._stream):
            with self._turn:  # not while it is aborted
                if self._over:
                    raise Broken("the communicator was aborted")
                _call(
                    call,
                    ctypes.c_void_p(block.data_ptr()),
                    ctypes.c_size_t(block.numel()),
                    ctypes.c_int(_UINT8),
                    ctypes.c_int(self._peer),
                    self._handle,
                    ctypes.c_void_p(self._stream.cuda_stream),
                )
            done = torch.cuda.Event(blocking=True)
            done.record(self._stream)
        done.synchronize()
        if self._over:
            raise Broken("the communicator was aborted")


class _Unique(ctypes.Structure):
    """Passed by value, as NCCL wants it."""

    _fields_ = [("bytes", ctypes.c_uint8 * UNIQUE_BYTES)]


@cache
def _library() -> ctypes.CDLL:
    torch.cuda.init()
    return ctypes.CDLL("libnccl.so.2")  # loaded with torch: found by its name


def _call(name: str, *arguments: object) -> None:
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        library.ncclGetErrorString.restype = ctypes.c_char_p
        raise Broken(f"{name} failed: {library.ncclGetErrorString(code).decode()} ({code})")


def version() -> int:
    """23004 is 2.30.4."""
    found = ctypes.c_int()
    _call("ncclGetVersion", ctypes.byref(found))
    return found.value
