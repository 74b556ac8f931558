"""Pages between GPU pools of processes on one host: the writer maps decode's pool and its kernels copy straight in.

Shared memory's promises with another memory behind the descriptor: the same handshake, the same death notice, the same
quarantine, because a mapping once given cannot be taken back. Copies run on a stream beside the engine's, layer group
by layer group while the next one is computed; a write returns when the device is through with it. The two processes
may use one GPU, or two that can reach each other."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

from kvtransfer.cuda_driver import DriverError
from kvtransfer.device_pool import Blocks, DevicePool, check_spans, portions, read_handle
from kvtransfer.shm import MappedReceiver, SharedMemory
from kvtransfer.shm_writer import Attach, Copies, MappedWriter, connect
from kvtransfer.transfer import PageShape, Pool, Span, TransferError

KIND = b"CIP1"


class CudaIpc:
    """A `Transport` between processes of one user on one host whose pools are on a GPU."""

    name = "cuda_ipc"

    def __init__(
        self,
        random: SystemRandom,
        *,
        folder: Path | None = None,
        may_kill: bool = True,
        handshake_seconds: float = 5.0,
    ) -> None:
        self._random, self._folder = random, folder or Path(tempfile.gettempdir())
        self._may_kill, self._handshake_seconds = may_kill, handshake_seconds

    def available(self) -> str:
        return SharedMemory(self._random, folder=self._folder).available()  # it needs the same of the kernel

    async def receive(self, pool: Pool, incarnation: int) -> MappedReceiver:
        return MappedReceiver(
            self.name,
            KIND,
            on_device(pool),
            incarnation,
            random=self._random,
            folder=self._folder,
            may_kill=self._may_kill,
            handshake_seconds=self._handshake_seconds,
        )

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> MappedWriter:
        into, seconds = into_device(on_device(pool)), self._handshake_seconds
        return await connect(handle, into, pool.shape, incarnation, name=self.name, kind=KIND, seconds=seconds)


def on_device(pool: Pool) -> DevicePool:
    if not isinstance(pool, DevicePool):
        raise TypeError(f"this transport moves pages of a DevicePool, not of a {type(pool).__name__}")
    return pool


class DeviceCopies:
    """Into a pool that another process has on a GPU."""

    def __init__(self, source: DevicePool, handle: bytes, shape: PageShape, pages: int) -> None:
        self._source, self._pages = source, pages
        self._memory = source.driver.map(handle, shape.page_bytes * pages)
        self._target = Blocks(source.driver, self._memory, shape, pages)

    def copy(self, spans: Sequence[Span]) -> tuple[int, ...]:
        check_spans(spans, self._source.shape, self._source.pages, self._pages)
        sums = list[int]()
        try:
            with self._source.driver.beside():
                for part in portions(spans, self._source.shape):
                    blocks, found = self._source.blocks.gather(part)
                    self._target.scatter(part, blocks)
                    sums += found
        except RuntimeError as error:  # what torch and the driver say when the device or its memory is gone
            raise TransferError(f"cuda_ipc: the copy failed: {error}") from error
        return tuple(sums)

    def close(self) -> None:
        self._source.driver.unmap(self._memory)


def into_device(source: DevicePool) -> Attach:
    def attach(fd: int, shape: PageShape, pages: int) -> Copies:
        try:
            copies = DeviceCopies(source, read_handle(fd), shape, pages)
        except RuntimeError as error:
            raise DriverError(f"its GPU memory cannot be mapped: {error}") from error
        os.close(fd)  # the mapping does not need it any more
        return copies

    return attach
