"""Two-rank communicators of NCCL, through ctypes: the library that torch has loaded already, never a second one.

One communicator joins one prefill worker with one decode worker; a larger one would need every rank for each change.
All are non-blocking: NCCL's calls return at once, joining and connecting go on in NCCL's own threads, and the waiting
thread polls their state. So `abort`, from any thread, ends a wait for a peer that died or never came. Tests pass other
`Communicators`."""

import ctypes
import logging
from functools import cache
from threading import Event, Lock, Thread
from typing import Protocol

import torch

log = logging.getLogger("baton.kvtransfer")

UNIQUE_BYTES = 128
_UINT8 = 1
_IN_PROGRESS = 7
_LOOK_SECONDS = 0.001  # between two looks at a call in progress
# The fields of NCCL's configuration that version 2.14 had; every later version reads them.
_CONFIG_MAGIC, _CONFIG_VERSION, _CONFIG_UNSET = 0xCAFEBEEF, 21400, -(1 << 31)


class Broken(OSError):
    """The communicator was aborted, or a call failed."""


class Communicator(Protocol):
    """One of the two ranks. `join` comes first; one thread makes all calls but `abort`, and gets Broken after it."""

    def join(self) -> None:
        """Returns when the other rank has joined too."""

    def send(self, block: torch.Tensor) -> None:
        """Returns when the block may change."""

    def receive(self, block: torch.Tensor) -> None:
        """Returns when the block is filled."""

    def abort(self) -> None:
        """End the communicator and the call that waits on it. Any thread may call it at any time; returns at once."""


class Communicators(Protocol):
    def available(self) -> str:
        """Empty when NCCL works here, else the reason why it does not."""

    def unique(self) -> bytes:
        """The name of a new communicator, a secret between its two ranks. NCCL listens for both in a thread of its own,
        which stays when one rank never comes; no thread of ours waits for it."""

    def pair(self, unique: bytes, rank: int, device: torch.device) -> Communicator: ...


class Nccl:
    def available(self) -> str:
        try:
            _library()
        except (OSError, RuntimeError, AssertionError) as error:  # torch raises them without CUDA
            return f"torch brings no NCCL here ({error})"
        return ""

    def unique(self) -> bytes:
        unique = _Unique()
        _call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def pair(self, unique: bytes, rank: int, device: torch.device) -> "NcclCommunicator":
        return NcclCommunicator(unique, rank, device)


class NcclCommunicator:
    def __init__(self, unique: bytes, rank: int, device: torch.device) -> None:
        self._unique, self._rank, self._device = _Unique.from_buffer_copy(unique), rank, device
        self._handle = ctypes.c_void_p()
        self._turn = Lock()  # held during a call, so that `abort` frees nothing that is in use
        self._over, self._freed = Event(), Event()

    def join(self) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()  # a thread that has not used the device yet has no context
            self._stream = torch.cuda.Stream(priority=-1)
            self._meet()

    def send(self, block: torch.Tensor) -> None:
        self._pass("ncclSend", block)

    def receive(self, block: torch.Tensor) -> None:
        self._pass("ncclRecv", block)

    def abort(self) -> None:
        """A thread ends the communicator: that frees memory, for which the device must come to rest."""
        if not self._over.is_set():
            self._over.set()
            Thread(target=self._end, name="baton-nccl-end", daemon=True).start()

    def _meet(self) -> None:
        config = _NcclConfig(ctypes.sizeof(_NcclConfig), _CONFIG_MAGIC, _CONFIG_VERSION, 0, _CONFIG_UNSET)
        ranks = (ctypes.c_int(2), self._unique, ctypes.c_int(self._rank))
        self._through("ncclCommInitRankConfig", ctypes.byref(self._handle), *ranks, ctypes.byref(config))

    def _end(self) -> None:
        try:
            with self._turn:
                handle, self._handle = self._handle, ctypes.c_void_p()
                if handle:
                    _call("ncclCommAbort", handle)
        except Broken as error:  # nothing can be done about it
            log.warning("nccl: %s", error)
        finally:
            self._freed.set()

    def _pass(self, name: str, block: torch.Tensor) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            place = (ctypes.c_void_p(block.data_ptr()), ctypes.c_size_t(block.numel()), ctypes.c_int(_UINT8))
            stream = ctypes.c_void_p(self._stream.cuda_stream)
            self._through(name, *place, ctypes.c_int(1 - self._rank), self._handle, stream)
            done = torch.cuda.Event(blocking=True)
            done.record(self._stream)
        done.synchronize()
        self._check()

    def _through(self, name: str, *arguments: object) -> None:
        """Make a call and wait until NCCL has carried it out. After an abort it returns only when NCCL's threads have
        ended, since they may still put a copy into the caller's block on the stream."""
        try:
            self._wait(name, *arguments)
        except Broken:
            if self._over.is_set():
                self._freed.wait()
            raise

    def _wait(self, name: str, *arguments: object) -> None:
        with self._turn:
            self._check()
            _call(name, *arguments)
        state = ctypes.c_int()
        while True:
            with self._turn:
                self._check()
                _call("ncclCommGetAsyncError", self._handle, ctypes.byref(state))
            if state.value != _IN_PROGRESS:
                return _expect(name, state.value)
            self._over.wait(_LOOK_SECONDS)

    def _check(self) -> None:
        if self._over.is_set():
            raise Broken("the communicator was aborted")


class _Unique(ctypes.Structure):
    """The name of a communicator, which NCCL takes by value."""

    _fields_ = [("bytes", ctypes.c_uint8 * UNIQUE_BYTES)]


class _NcclConfig(ctypes.Structure):
    """The first members of `ncclConfig_t`; `size` tells NCCL how many there are."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),  # a later version's, where ours has padding
    ]


@cache
def _library() -> ctypes.CDLL:
    torch.cuda.init()
    return ctypes.CDLL("libnccl.so.2")  # loaded with torch: found by its name


def _call(name: str, *arguments: object) -> None:
    """Call NCCL; returns when the call is done or has begun."""
    code = getattr(_library(), name)(*arguments)
    if code != _IN_PROGRESS:
        _expect(name, code)


def _expect(name: str, code: int) -> None:
    if code:
        library = _library()
        library.ncclGetErrorString.restype = ctypes.c_char_p
        raise Broken(f"{name} failed: {library.ncclGetErrorString(code).decode()} ({code})")


def version() -> int:
    """23004 is 2.30.4."""
    found = ctypes.c_int()
    _call("ncclGetVersion", ctypes.byref(found))
    return found.value
