"""Two-rank communicators of NCCL, through ctypes: the library that torch has loaded already, never a second one.

One communicator joins one prefill with one decode worker: windows, growing and shrinking would be collective. All are
non-blocking: NCCL's calls return at once, joining and connecting go on in its own threads, and whoever waits here asks
how far they are. So a wait for a peer that died or never came, while joining as in a copy, ends by `abort`, from any
thread. Tests hand in another `Communicators`."""

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
_LOOK_SECONDS = 0.001  # how often a call in progress is asked for
# Of NCCL's configuration only what version 2.14 had, which every later one reads.
_CONFIG_MAGIC, _CONFIG_VERSION, _CONFIG_UNSET = 0xCAFEBEEF, 21400, -(1 << 31)


class Broken(OSError):
    """The communicator was aborted, or a call failed."""


class Communicator(Protocol):
    """Not joined yet when it is made. One thread calls everything but `abort`; Broken when it was aborted meanwhile."""

    def join(self) -> None:
        """Returns when the other rank has joined too."""

    def send(self, block: torch.Tensor) -> None:
        """Returns when the block may change."""

    def receive(self, block: torch.Tensor) -> None:
        """Returns when the block is filled."""

    def abort(self) -> None:
        """At any time, from any thread, idempotent: ends what waits, and the communicator. Does not wait itself."""


class Communicators(Protocol):
    def available(self) -> str:
        """Empty when usable here, else the reason why not."""

    def unique(self) -> bytes:
        """Names a communicator that does not exist yet; a secret between its two ranks. NCCL listens for both in a
        thread of its own, which stays when one never comes: nothing of ours waits for it."""

    def pair(self, unique: bytes, rank: int, device: torch.device) -> Communicator: ...


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

    def pair(self, unique: bytes, rank: int, device: torch.device) -> "NcclCommunicator":
        return NcclCommunicator(unique, rank, device)


class NcclCommunicator:
    def __init__(self, unique: bytes, rank: int, device: torch.device) -> None:
        self._unique, self._rank, self._device = _Unique.from_buffer_copy(unique), rank, device
        self._handle = ctypes.c_void_p()
        self._turn = Lock()  # no call on what `abort` has freed
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
        """It frees memory, for which the device must come to rest: not in the caller's time."""
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
        except Broken as error:  # nobody can do anything about it
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
        """A call, and until NCCL is through with it: on the stream or, joining, with the other rank. Aborted: not
        before its threads have ended, which may still put a copy into our block on the stream."""
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
    """Passed by value, as NCCL wants it."""

    _fields_ = [("bytes", ctypes.c_uint8 * UNIQUE_BYTES)]


class _NcclConfig(ctypes.Structure):
    """The first members of `ncclConfig_t`; the size says where ours end."""

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
    """Returns when it is done, or has begun."""
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
