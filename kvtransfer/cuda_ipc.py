"""Pages between GPU pools of processes on one host: the writer maps decode's pool and its kernels copy straight in.

It works like shared memory, with a GPU's memory behind the descriptor: the handshake, the notice of a death and the
quarantine are the same, because a mapping cannot be taken back. Copies run on a stream beside the engine's, layer group
by layer group while the next one is computed; a write returns when the device is through with it. The two processes
may use one GPU, or two that can reach each other."""

import os
from collections.abc import Sequence

from kvtransfer.cuda_driver import DriverError
from kvtransfer.device_pool import Blocks, DevicePool, check_spans, portions, read_handle
from kvtransfer.mapped import MappedTransport
from kvtransfer.mapped_writer import Attach, Copies
from kvtransfer.transfer import Pool, Span, TransferError
from mesh.messages.page_shape import PageShape


class CudaIpc(MappedTransport):
    name = "cuda_ipc"
    kind = b"CIP1"

    def mappable(self, pool: Pool) -> DevicePool:
        return on_device(pool)

    def into(self, pool: Pool) -> Attach:
        source = on_device(pool)

        def attach(fd: int, shape: PageShape, pages: int) -> Copies:
            try:
                copies = DeviceCopies(source, read_handle(fd), shape, pages)
            except RuntimeError as error:
                raise DriverError(f"its GPU memory cannot be mapped: {error}") from error
            os.close(fd)  # the mapping does not need it any more
            return copies

        return attach


def on_device(pool: Pool) -> DevicePool:
    if not isinstance(pool, DevicePool):
        raise TypeError(f"this transport moves pages of a DevicePool, not of a {type(pool).__name__}")
    return pool


class DeviceCopies:
    """Copies into a pool that another process has on a GPU."""

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
        except RuntimeError as error:  # torch and the driver raise it when the device or its memory is gone
            raise TransferError(f"cuda_ipc: the copy failed: {error}") from error
        return tuple(sums)

    def close(self) -> None:
        self._source.driver.unmap(self._memory)
