"""NCCL's waits end, whoever dies or stays silent, while two ranks are joining as in the middle of a portion.

The communicators are fakes whose joins wait for the other rank for ever; deaf ones, which hear no abort as NCCL's
blocking communicators do not, are the negative control: with them the very same ends leave a thread waiting."""

import asyncio
import ctypes
import random
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvtransfer import nccl_library
from kvtransfer.frames import WELCOME_BYTES, Greeting, PoolHandle, Welcome
from kvtransfer.nccl import KIND, NcclReceiver, NcclTransport
from kvtransfer.nccl_library import UNIQUE_BYTES, Broken
from kvtransfer.portions import pack_portion
from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_shape import opaque_pages
from tests.harness.waiting import within
from tests.unit.kvtransfer.on_device import FakeCommunicators, OpenPool

SHAPE, TICKET = opaque_pages((6, 4096), content="gpu-bf16-16-64-v1"), bytes(range(32))
WRITER, RECEIVER = 1, 2


class Ends:
    """A receiver and a transport for its writers, over one communicators."""

    def __init__(
        self, communicators: FakeCommunicators, transport: NcclTransport, receiver: NcclReceiver, pool: OpenPool
    ) -> None:
        self.communicators, self.transport, self.receiver, self.pool = communicators, transport, receiver, pool

    async def half_a_writer(self) -> socket.socket:
        """Greets and is welcomed, but does not join."""
        handle = PoolHandle.unpack(self.receiver.handle(WRITER))
        host, port = handle.address.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setblocking(False)
        loop, joining = asyncio.get_running_loop(), self.communicators.joining
        await loop.sock_sendall(connection, Greeting(handle.token, WRITER, RECEIVER, SHAPE).pack())
        left = WELCOME_BYTES + UNIQUE_BYTES
        while left:
            left -= len(await loop.sock_recv(connection, left))
        await within(60, lambda: self.communicators.joining == joining + 1)
        return connection

    @property
    def waits(self) -> bool:
        return self.communicators.joining > 0 or bool(self.receiver._talks)


@asynccontextmanager
async def ends(*, deaf: bool = False, seconds: float = 5.0) -> AsyncIterator[Ends]:
    communicators, pool = FakeCommunicators(deaf=deaf), OpenPool(SHAPE, 4)
    transport = NcclTransport(random.SystemRandom(), communicators=communicators, handshake_seconds=seconds)
    receiver = await transport.receive(pool, RECEIVER)
    try:
        yield Ends(communicators, transport, receiver, pool)
    finally:
        communicators.hear()
        await receiver.aclose()
        pool.close()
        await within(60, lambda: not any(thread.name.startswith("baton-nccl") for thread in threading.enumerate()))


async def test_a_writer_that_dies_while_joining_is_dropped_at_once_and_counted():
    async with ends() as both:
        (await both.half_a_writer()).close()
        await within(60, lambda: not both.waits)
        assert both.receiver.refused == {"gone": 1}


async def test_a_writer_that_never_joins_is_dropped_when_the_handshake_is_over_and_counted():
    async with ends(seconds=1.0) as both:
        silent = await both.half_a_writer()
        await within(60, lambda: not both.waits)
        assert both.receiver.refused == {"late": 1}
        silent.close()


async def test_a_receiver_closes_while_a_writer_is_joining():
    async with ends() as both:
        waiting = await both.half_a_writer()
        async with asyncio.timeout(60):
            await both.receiver.aclose()
        assert not both.waits
        waiting.close()


@pytest.mark.parametrize("end", ["dies", "silent", "closes"])
async def test_negative_control_a_communicator_that_hears_no_abort_keeps_its_thread(end):
    async with ends(deaf=True, seconds=0.5 if end == "silent" else 5.0) as both:
        writer = await both.half_a_writer()
        closing = None
        if end == "dies":
            writer.close()
        elif end == "closes":
            closing = asyncio.ensure_future(both.receiver.aclose())
        await asyncio.sleep(0.9)
        assert both.waits
        both.communicators.hear()
        if closing is not None:
            await closing
        writer.close()


async def test_a_join_that_hangs_holds_nobody_else_up():
    source = OpenPool(SHAPE, 4)
    source.memory.fill_(9)
    async with ends() as both:
        hanging = await both.half_a_writer()
        arrived = []
        both.receiver.open(TICKET, {0: 3}, arrived.append)
        writers = await asyncio.gather(*(both.transport.connect(both.receiver.handle(n), source, n) for n in (7, 8)))
        await writers[0].write(TICKET, [Span(0, 0, 3, 0, 6)], 0)
        await within(60, lambda: len(arrived) == 1)
        assert both.communicators.joining == 1 and both.pool.checksum(3, 0, 6) == source.checksum(0, 0, 6)
        for writer in writers:
            writer.close()
        hanging.close()
        await within(60, lambda: not both.waits)
        assert both.receiver.refused == {"gone": 1}  # the two that ended between portions are no mishap
    source.close()


@pytest.mark.parametrize("half", [True, False], ids=["in a frame's head", "before a block"])
async def test_a_writer_that_dies_in_mid_portion_leaves_no_wait_and_no_byte(half):
    source = OpenPool(SHAPE, 4)
    source.memory.fill_(9)
    async with ends() as both:
        both.receiver.open(TICKET, {0: 0}, lambda arrived: None)
        writer = await both.transport.connect(both.receiver.handle(WRITER), source, WRITER)
        portion = pack_portion(TICKET, [Span(0, 0, 0, 0, 6)], 0, [1], SHAPE)
        writer._connection.sendall(portion[:11] if half else portion)
        await asyncio.sleep(0.05)
        assert both.receiver._talks  # waits for the block
        writer.close()
        await within(60, lambda: not both.waits)
        assert not both.pool.memory.any() and both.receiver.refused == {"gone": 1}
    source.close()


# ---- the writer's end


class Deserter:
    """A receiver that welcomes a writer, and then hangs up or says nothing."""

    def __init__(self, *, hangs_up: bool) -> None:
        self._hangs_up, self._talks = hangs_up, set[asyncio.StreamWriter]()

    async def __aenter__(self) -> bytes:
        """Listen; returns the handle that a writer needs."""
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return PoolHandle(KIND, bytes(16), RECEIVER, f"127.0.0.1:{port}").pack()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talks.add(writer)
        writer.write(Welcome(True, RECEIVER, 4, SHAPE).pack() + bytes(UNIQUE_BYTES))
        if self._hangs_up:
            await asyncio.sleep(0.1)
            writer.close()

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for writer in self._talks:
            writer.close()
        await self._server.wait_closed()


@pytest.mark.parametrize(
    ("hangs_up", "seconds", "why"), [(True, 60.0, "hung up while the two were joining"), (False, 0.4, "within 0.4 s")]
)
async def test_a_receiver_that_deserts_a_joining_writer_is_a_transfer_error(hangs_up, seconds, why):
    communicators, source = FakeCommunicators(), OpenPool(SHAPE, 4)
    transport = NcclTransport(random.SystemRandom(), communicators=communicators, handshake_seconds=seconds)
    async with Deserter(hangs_up=hangs_up) as handle:
        with pytest.raises(TransferError, match=why):
            await transport.connect(handle, source, WRITER)
    assert communicators.joining == 0
    source.close()


async def test_a_connect_that_is_cancelled_while_joining_leaves_no_thread():
    communicators, source = FakeCommunicators(), OpenPool(SHAPE, 4)
    async with Deserter(hangs_up=False) as handle:
        transport = NcclTransport(random.SystemRandom(), communicators=communicators)
        connecting = asyncio.ensure_future(transport.connect(handle, source, WRITER))
        await within(60, lambda: communicators.joining == 1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    assert communicators.joining == 0
    source.close()


# ---- NCCL's own calls, against a library that is in the middle of each for as long as the test likes


class FakeLibrary:
    """Takes NCCL's calls. `progress` is what the calls that were begun have come to."""

    def __init__(self) -> None:
        self.progress, self.calls, self.config = 7, list[str](), None
        self.letting_go = threading.Event()
        self.letting_go.set()

    def __getattr__(self, name: str):
        def call(*arguments: object) -> int:
            self.calls.append(name)
            if name == "ncclCommInitRankConfig":
                arguments[0]._obj.value = 0xC0
                self.config = arguments[4]._obj
                return 7
            if name == "ncclCommAbort":
                self.letting_go.wait(5)
            if name == "ncclCommGetAsyncError":
                arguments[1]._obj.value = self.progress
            return 0

        return call


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    fake.ncclGetErrorString = lambda code: b"remote error"
    monkeypatch.setattr(nccl_library, "_library", lambda: fake)
    return fake


def begun(library: FakeLibrary) -> tuple[nccl_library.NcclCommunicator, threading.Thread, list[Exception]]:
    """A pair whose thread waits for the other rank."""
    pair, raised = nccl_library.NcclCommunicator(bytes(UNIQUE_BYTES), 0, "cpu"), list[Exception]()

    def wait() -> None:
        try:
            pair._meet()
        except Broken as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while "ncclCommGetAsyncError" not in library.calls:
        threading.Event().wait(0.001)
    return pair, thread, raised


def test_an_abort_ends_a_join_that_is_in_progress_and_frees_the_communicator_once(library):
    pair, thread, raised = begun(library)
    pair.abort()
    pair.abort()
    thread.join(5)
    assert not thread.is_alive() and "aborted" in str(raised[0])
    assert library.calls.count("ncclCommAbort") == 1 and library.calls[-1] == "ncclCommAbort"


def test_whoever_was_waiting_goes_on_only_when_nccl_has_let_go_of_its_block(library):
    library.letting_go.clear()
    pair, thread, raised = begun(library)
    pair.abort()
    thread.join(0.2)
    assert thread.is_alive() and not raised
    library.letting_go.set()
    thread.join(5)
    assert not thread.is_alive() and raised


def test_negative_control_without_the_abort_a_join_in_progress_goes_on_waiting(library):
    pair, thread, _ = begun(library)
    thread.join(0.2)
    assert thread.is_alive()
    pair.abort()
    thread.join(5)


def test_a_join_that_nccl_gives_up_says_why(library):
    library.progress = 6
    _, thread, raised = begun(library)
    thread.join(5)
    assert "ncclCommInitRankConfig failed: remote error (6)" in str(raised[0])


def test_a_communicator_is_asked_for_that_does_not_block(library):
    library.progress = 0
    begun(library)[1].join(5)
    config = library.config
    assert (config.magic, config.blocking, config.size) == (0xCAFEBEEF, 0, ctypes.sizeof(config)) and config.size == 24
