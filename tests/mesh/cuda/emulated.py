"""A GPU that is not there, for whole processes: `python -m tests.mesh.cuda.emulated MODULE ARGUMENT...` runs one of our
modules as if this machine had one.

Nothing of ours is left out: the services open the model "on cuda", its kernels run in Triton's interpreter
(TRITON_INTERPRET=1, set before triton is imported), pools are `DevicePool`s, pages travel over the GPU's transports.
What is replaced is what only NVIDIA has: the driver, whose memory is an anonymous file here that another process maps
through /proc (stale, as with CUDA, once its owner is gone), and NCCL, whose communicators are sockets."""

import mmap
import os
import runpy
import secrets
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cli.local_mesh.supervisor import Service
from engine.cuda.device import Found, Gpu
from kvtransfer.cuda_driver import HANDLE_BYTES, DriverError
from kvtransfer.nccl_library import UNIQUE_BYTES, Broken
from tests.unit.kvtransfer.on_device import FakeDriver

ROOT = Path(__file__).resolve().parents[3]
GPU = Gpu("an emulated GPU", (9, 0), 1 << 30, "13.0")
PATHS = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
ENVIRONMENT = {"TRITON_INTERPRET": "1", "PYTHONPATH": PATHS}
JOIN_SECONDS = 60.0


class SharedDriver(FakeDriver):
    """Every allocation is a file of its own."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # descriptors by address

    def allocate(self, nbytes: int) -> torch.Tensor:
        fd = os.memfd_create("baton-emulated-gpu", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        memory = _mapped(fd, nbytes)
        self._files[memory.data_ptr()] = fd
        return memory

    def free(self, memory: torch.Tensor) -> None:
        os.close(self._files.pop(memory.data_ptr()))

    def export(self, memory: torch.Tensor) -> bytes:
        return f"/proc/{os.getpid()}/fd/{self._files[memory.data_ptr()]}".encode().ljust(HANDLE_BYTES, b"\0")

    def map(self, handle: bytes, nbytes: int) -> torch.Tensor:
        try:
            fd = os.open(handle.rstrip(b"\0").decode(), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DriverError(f"no such memory: {error}") from error
        try:
            if os.fstat(fd).st_size != nbytes:
                raise DriverError(f"{os.fstat(fd).st_size} bytes are there, not {nbytes}")
            return _mapped(fd, nbytes)
        finally:
            os.close(fd)


def _mapped(fd: int, nbytes: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)


class SocketFabric:
    """Two ranks meet at a socket that has the communicator's name."""

    def available(self) -> str:
        return ""

    def unique(self) -> bytes:
        return secrets.token_bytes(UNIQUE_BYTES)

    def pair(self, unique: bytes, rank: int, device: torch.device) -> "SocketPair":
        return SocketPair(b"\0" + unique[:100], listens=rank == 0)


class SocketPair:
    def __init__(self, address: bytes, *, listens: bool) -> None:
        self._address, self._listens = address, listens
        self._connection = socket.socket(socket.AF_UNIX)
        self._over = False

    def join(self) -> None:
        end = time.monotonic() + JOIN_SECONDS
        meet = self._accept if self._listens else self._connect
        while not meet():
            if self._over or time.monotonic() > end:
                raise Broken("the other rank did not come")

    def _accept(self) -> bool:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self._address)
            listening.listen(1)
            listening.settimeout(JOIN_SECONDS)
            try:
                self._connection, _ = listening.accept()
            except TimeoutError:
                return False
        return True

    def _connect(self) -> bool:
        try:
            self._connection.connect(self._address)
        except ConnectionRefusedError:  # nobody has that name yet
            time.sleep(0.005)
            return False
        return True

    def send(self, block: torch.Tensor) -> None:
        try:
            self._connection.sendall(_bytes(block))
        except OSError as error:
            raise Broken(str(error)) from error

    def receive(self, block: torch.Tensor) -> None:
        left = _bytes(block)
        while left:
            try:
                count = self._connection.recv_into(left)
            except OSError as error:
                raise Broken(str(error)) from error
            if not count:
                raise Broken("the other rank is gone")
            left = left[count:]

    def abort(self) -> None:
        self._over = True
        with suppress(OSError):  # wakes whoever waits
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _bytes(block: torch.Tensor) -> memoryview:
    return memoryview(block.numpy()).cast("B")


def install() -> None:
    """From now on this process has a GPU. Nothing that asks for one may have been imported yet."""
    import engine.cuda.device

    assert "engine.loading.loaded" not in sys.modules
    found = Found(GPU, "")
    engine.cuda.device.find_gpu = lambda: found
    import engine.cuda.identity
    import engine.cuda.loaded
    import kvtransfer.device_pool
    import kvtransfer.nccl
    import mesh.rules

    engine.cuda.identity.self_test = self_test
    engine.cuda.loaded.load_on_gpu = _open
    kvtransfer.device_pool.CudaDriver = SharedDriver
    kvtransfer.nccl.Nccl = SocketFabric
    mesh.rules.RULES = replace(mesh.rules.RULES, progress_seconds=60.0)  # the interpreter is slow
    torch.set_num_threads(1)


def self_test(path: str, device: torch.device) -> str:
    """Ours takes the interpreter seconds in every process; it has tests of its own."""
    return f"emulated-{path}"


def _open(gpu: Gpu, folder: Path, cache_folder: Path, *, product_path: str, **more: Any) -> Any:
    from engine.cuda.loaded import gpu_path, load_on_device

    path, body = gpu_path(product_path, gpu)
    return load_on_device(folder, cache_folder, torch.device("cpu"), path=path, body=body, **more)


def emulated(service: Service) -> Service:
    """The gateway computes nothing and stays."""
    if service.arguments[:4] == ("-m", "cli", "serve", "gateway"):
        return service
    arguments = ("-m", "tests.mesh.cuda.emulated", *service.arguments[1:])
    return replace(service, arguments=arguments, environment=(*service.environment, *ENVIRONMENT.items()))


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
