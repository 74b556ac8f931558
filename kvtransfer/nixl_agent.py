"""One NIXL agent: memory registered with the RDMA devices, and a peer that it writes to or that writes here.

NIXL drives the devices through UCX. Every connection has an agent of its own at both ends, because only the end of an
agent destroys the keys of its memory. NIXL's `deregister_memory` leaves them valid, because UCX keeps registrations for
later use; and the bytes of a cancelled write still land. One thread at a time uses an agent. Nothing is unpickled."""

import ctypes
import gc
import importlib
import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGES = (
    "nixl_cu12",
    "nixl_cu13",
)  # one library beside two versions of CUDA; host memory needs neither
MEMORY = "DRAM"

Places = npt.NDArray[np.int64]


class AgentError(OSError):
    """NIXL or the device could not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class RdmaFabric:
    """The ways that UCX may take. `rc` is an RDMA device's reliable connection: a write over it needs a key that the
    receiver can destroy. Anything else is for tests: UCX imitates one-sided writes over `tcp`, where the receiver's own
    thread copies the bytes, and over `cma` it writes without any key."""

    ways: str = "rc"
    devices: str = ""  # as UCX_NET_DEVICES names them; empty: what the environment says, else all

    @property
    def imitated(self) -> bool:
        """Bytes land only while the receiver's agent makes progress."""
        return self.ways != "rc"


class Agent:
    def __init__(self, name: str, fabric: RdmaFabric) -> None:
        self.name = name
        self._peer = ""
        self._transfers = dict[int, Any]()
        self._begun = 0
        api = library()
        with _MAKING, UcxEnvironment(fabric):
            self._nixl: Any = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=[]))
            self._call(f"UCX finds no way over {fabric.ways}", "create_backend", "UCX")

    def register(self, regions: Sequence[tuple[int, int]]) -> None:
        """Let the device reach these regions (address, bytes), and pin them in memory."""
        mebibytes = sum(size for _, size in regions) >> 20
        problem = f"{mebibytes} MiB cannot be registered; RDMA pins them once for each connection, see `ulimit -l`"
        self._call(problem, "register_memory", [(*region, 0, "") for region in regions], MEMORY)

    def metadata(self) -> bytes:
        """A secret of two: a peer needs it to reach this agent and the memory registered so far."""
        return bytes(self._call("no metadata", "get_agent_metadata"))

    def join(self, metadata: bytes) -> None:
        """Learn the peer, whose metadata this is. An agent that failed here is of no more use."""
        peer = self._call("the receiver's metadata are refused", "add_remote_agent", metadata)
        self._peer = peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)

    def write(self, source: Places, target: Places, sizes: Places) -> int:
        """Begin to write the bytes at these addresses into the peer's memory; returns the number of the transfer."""
        problem = "a write cannot begin"
        ends = [self._call(problem, "get_xfer_descs", _rows(side, sizes), MEMORY) for side in (source, target)]
        self._begun += 1
        self._transfers[self._begun] = self._call(problem, "initialize_xfer", "WRITE", *ends, self._peer, b"")
        if self._call(problem, "transfer", self._transfers[self._begun]) == "ERR":
            raise AgentError(problem)
        return self._begun

    def done(self, transfer: int) -> bool:
        """Is every byte of the transfer in the peer's memory? AgentError when it can never be."""
        state = self._call("a write failed", "check_xfer_state", self._transfers[transfer])
        if state == "ERR":
            raise AgentError("a write failed")
        if state == "DONE":
            self._call("a transfer cannot be released", "release_xfer_handle", self._transfers.pop(transfer))
        return bool(state == "DONE")

    def progress(self) -> None:
        """Let UCX do its part of what the peer has begun. No notification is expected: they are dropped."""
        self._call("no progress", "get_new_notifs")

    def destroy(self) -> None:
        """End the agent: its connections, then its registrations; idempotent. When this returns, the device refuses the
        keys that the peer has, whatever the peer does. AgentError when the agent is still there: nothing is proved."""
        if self._nixl is not None:
            self._alive = weakref.ref(self._nixl.agent)
            self._transfers.clear()
            self._nixl = None
        if self._alive() is not None:
            gc.collect()  # an exception's frames may refer to it
        if self._alive() is not None:
            raise AgentError(f"NIXL's agent {self.name} is still in use, and so is the key of its memory")

    def _call(self, problem: str, method: str, *arguments: Any) -> Any:
        """NIXL's errors have no base class. They are raised anew outside of the handler, so that their frames, which
        refer to the agent, do not keep it alive."""
        if self._nixl is None:
            raise AgentError("the agent was destroyed")
        try:
            return getattr(self._nixl, method)(*arguments)
        except Exception as error:
            problem = f"{problem} ({error})"
        del arguments
        raise AgentError(problem)


@cache
def library() -> ModuleType:
    """NIXL's Python interface; ImportError when no package of it is installed."""
    for package in PACKAGES:
        try:
            found = importlib.import_module(f"{package}._api")
        except ModuleNotFoundError:
            continue
        chatter = logging.getLogger("nixl")  # it writes to stdout, where results of commands go
        chatter.handlers.clear()
        chatter.setLevel(logging.WARNING)
        chatter.propagate = True
        _leave_at_exit()
        return found
    raise ModuleNotFoundError(f"none of {', '.join(PACKAGES)} is installed")


def _leave_at_exit() -> None:
    """End the process with its status before the libraries' destructors run. The package and rdma-core bring a copy of
    libnl-route each, and with both in one process the destructor of the first one crashes."""
    process = ctypes.CDLL(None)
    process.on_exit(ctypes.cast(process._exit, ctypes.c_void_p), None)


class UcxEnvironment:
    """UCX reads its settings from the environment when an agent is made; nothing else reads these."""

    def __init__(self, fabric: RdmaFabric) -> None:
        self._set = {"UCX_TLS": fabric.ways}
        if fabric.devices:
            self._set["UCX_NET_DEVICES"] = fabric.devices

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._set}
        os.environ.update(self._set)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_MAKING = Lock()


def _rows(addresses: Places, sizes: Places) -> npt.NDArray[np.uint64]:
    """NIXL's form of memory: (address, bytes, device)."""
    return np.stack([addresses, sizes, np.zeros_like(sizes)], axis=1).astype(np.uint64)
