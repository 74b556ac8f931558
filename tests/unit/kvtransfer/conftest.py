"""Pool pairs: one writer and one receiver over a transport, in one process, with pools full of recognisable bytes.

The conformance suite runs over every entry of `TRANSPORTS`; another transport joins by a line there. The fakes of the
simulation (`FAKES`) keep the part of it that is about pages; they have no handshake and no back-pressure."""

import asyncio
import atexit
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import uvloop

from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.frames import PoolHandle
from kvtransfer.memory import Fabric, MemoryTransport
from kvtransfer.nccl import NcclTransport
from kvtransfer.pool import SharedPool
from kvtransfer.shm import SharedMemory
from kvtransfer.tcp import Tcp, TcpOptions
from kvtransfer.transfer import Arrived, Receiver, Span, Transport, Writer
from mesh.messages.page_shape import PageShape, opaque_pages
from tests.rdma.fabric import chosen_fabric, need_nixl
from tests.rdma.fabric import transport as transport_over
from tests.unit.certificates import Authority, files_in
from tests.unit.kvtransfer.on_device import FakeCommunicators, OpenPool

SHAPE = opaque_pages((6, 4096), content="fp32-16-16-v1")
WRITER, RECEIVER = 0xA11CE, 0xB0B


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Instead of pytest's own, which can be too long: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        yield Path(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Services run on uvloop where it is installed, else on asyncio's own loop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _shm(folder: Path) -> Transport:
    return SharedMemory(random.SystemRandom(), folder=folder)


def _cuda_ipc(folder: Path) -> Transport:
    return CudaIpc(random.SystemRandom(), folder=folder)


def _nccl(folder: Path) -> Transport:
    return NcclTransport(random.SystemRandom(), communicators=FakeCommunicators())


def _rdma(folder: Path) -> Transport:
    need_nixl()
    return transport_over(chosen_fabric())


def _tcp(folder: Path) -> Transport:
    return Tcp(random.SystemRandom())


def _tcp_one_connection(folder: Path) -> Transport:
    return Tcp(random.SystemRandom(), TcpOptions(connections=1, send_buffer_bytes=64 * 1024))


def _tcp_tls(folder: Path) -> Transport:
    return Tcp(random.SystemRandom(), tls=files_in(_certificates()))


@cache
def _certificates() -> Path:
    """Made once; they go with the process."""
    folder = Path(tempfile.mkdtemp(prefix="baton-"))
    atexit.register(shutil.rmtree, folder)
    return Authority(folder / "authority").sign(folder / "worker")


@cache
def _content(size: int) -> bytes:
    return np.random.default_rng(5).bytes(size)


TRANSPORTS: dict[str, Callable[[Path], Transport]] = {
    "shm": _shm,
    "rdma": _rdma,
    "tcp": _tcp,
    "tcp-narrow": _tcp_one_connection,
    "tcp-tls": _tcp_tls,
    "cuda_ipc": _cuda_ipc,
    "nccl": _nccl,
}
ONE_SIDED = ("shm", "rdma", "cuda_ipc")
FAKES: dict[str, Callable[[Path], Transport]] = {
    "memory, one-sided": lambda folder: MemoryTransport(Fabric(random.Random(1)), "memory", True),
    "memory, two-sided": lambda folder: MemoryTransport(Fabric(random.Random(1)), "memory", False),
}


@dataclass
class PoolPair:
    transport: Transport
    source: SharedPool
    target: SharedPool
    receiver: Receiver
    writer: Writer
    arrived: list[Arrived] = field(default_factory=list)
    streams: list[asyncio.StreamWriter] = field(default_factory=list)  # connections by `dial`; they end with the pair

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection to the receiver, which ends with the pair at the latest: uvloop's `close` waits for ever for
        a stream that a test has left open because an assertion failed."""
        host, port = PoolHandle.unpack(self.receiver.handle(WRITER)).address.split(":")
        reader, stream = await asyncio.open_connection(host, int(port))
        self.streams.append(stream)
        return reader, stream

    def open(self, ticket: bytes, spans: list[Span]) -> None:
        self.receiver.open(ticket, {span.index: span.target for span in spans}, self.arrived.append)

    async def landed(self, count: int) -> None:
        """Two-sided: until so many frames have arrived. One-sided: they are there when the write returned."""
        if not self.receiver.one_sided:
            await self.until(lambda: len(self.arrived) >= count)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.001)

    def same(self, span: Span) -> bool:
        place = (span.first_layer, span.layers)
        return self.source.view(span.source, *place) == self.target.view(span.target, *place)


@asynccontextmanager
async def _pool_pair(transport: Transport, *, shape: PageShape = SHAPE, pages: int = 64) -> AsyncIterator[PoolPair]:
    make = OpenPool if transport.name in ("cuda_ipc", "nccl") else SharedPool
    source, target = make(shape, pages), make(shape, pages)
    source.buffer[:] = _content(len(source.buffer))
    receiver = await transport.receive(target, RECEIVER)
    writer = await transport.connect(receiver.handle(WRITER), source, WRITER)
    pair = PoolPair(transport, source, target, receiver, writer)
    try:
        yield pair
    finally:
        for stream in pair.streams:
            stream.transport.abort()
        writer.close()
        await receiver.aclose()
        source.close()
        target.close()


@pytest.fixture
def nixl() -> None:
    need_nixl()


@pytest.fixture
def new_pair() -> Callable[..., object]:
    return _pool_pair


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Transport:
    return TRANSPORTS[request.param](tmp_path)


@pytest.fixture(params=[name for name in TRANSPORTS if name not in ONE_SIDED])
def two_sided(request: pytest.FixtureRequest, tmp_path: Path) -> Transport:
    return TRANSPORTS[request.param](tmp_path)


@pytest.fixture(params=[*TRANSPORTS, *FAKES])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PoolPair]:
    async with _pool_pair((TRANSPORTS | FAKES)[request.param](tmp_path)) as pair:
        yield pair


@pytest.fixture
async def real_pair(transport: Transport) -> AsyncIterator[PoolPair]:
    async with _pool_pair(transport) as pair:
        yield pair


@pytest.fixture
async def two_sided_pair(two_sided: Transport) -> AsyncIterator[PoolPair]:
    async with _pool_pair(two_sided) as pair:
        yield pair


@pytest.fixture
def checksum() -> Callable[[memoryview, int], int]:
    """The definition: 64-bit words times odd keys that belong to their place in the page, summed modulo 2^64."""

    def definition(view: memoryview, offset: int) -> int:
        words = np.frombuffer(bytes(view), np.uint64)
        x = np.arange(offset // 8 + 1, offset // 8 + 1 + len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        y = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        return int((words * ((y ^ (y >> np.uint64(29))) | np.uint64(1))).sum(dtype=np.uint64))

    return definition
