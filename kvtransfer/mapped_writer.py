"""Prefill's half of transports whose writers map decode's pool: shared memory, and a GPU's (`kvtransfer/cuda_ipc.py`).

The writer dials the receiver's socket, gets a descriptor, maps the memory behind it and copies spans straight in; the
copy computes the checksums. One thread per writer copies, in the order of the calls. A write returns once the bytes are
in decode's pages. A cancelled write ends no earlier than the copy it began, so its end means that no write is in
flight."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kvtransfer.blocking import finish, finish_or_discard
from kvtransfer.frames import WELCOME_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.peer import credentials, stranger
from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_fit import transport_obstacle
from mesh.messages.page_shape import PageShape


class Copies(Protocol):
    """Copies from this worker's pool into a mapped one, converted where their pages differ."""

    def copy(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """Copy the spans and return their checksums. Runs in the copier's thread; TransferError when it fails."""

    def close(self) -> None:
        """Give the mapping back."""


class MappedWriter:
    one_sided = True

    def __init__(
        self, name: str, connection: socket.socket, copies: Copies, shape: PageShape, copier: ThreadPoolExecutor
    ) -> None:
        self.name, self.bytes_written = name, 0
        self._connection, self._copies, self.shape, self._copier = connection, copies, shape, copier
        self._broken = ""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._hung_up)

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        self._check()
        sums = await finish(self._copier, lambda: self._copies.copy(spans) if spans else ())
        self._check()  # the receiver died meanwhile: the bytes went nowhere
        self.bytes_written += sum(self.shape.place(span.first_layer, span.layers)[1] for span in spans)
        return sums

    def close(self) -> None:
        """Idempotent. The mapping is given back after a copy that still runs."""
        if self._connection.fileno() < 0:
            return
        self._broken = self._broken or "this writer was closed"
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self._copier.submit(self._copies.close)
        self._copier.shutdown(wait=False)

    def _check(self) -> None:
        if self._broken:
            raise TransferError(self._broken)

    def _hung_up(self) -> None:
        """The receiver never sends, so its socket is readable when it has ended this session or died."""
        self._broken = "the receiver closed its socket"
        self._loop.remove_reader(self._connection)


Attach = Callable[[int, PageShape, int], Copies]  # (descriptor, shape, pages): takes the descriptor over if it succeeds


async def connect(
    handle: bytes, attach: Attach, shape: PageShape, incarnation: int, *, name: str, kind: bytes, seconds: float
) -> MappedWriter:
    copier = ThreadPoolExecutor(1, thread_name_prefix="baton-copy")
    try:
        connection, copies, target = await finish_or_discard(
            copier, lambda: _dial(handle, attach, shape, incarnation, name=name, kind=kind, seconds=seconds), _discard
        )
    except BaseException:
        copier.shutdown(wait=False)
        raise
    return MappedWriter(name, connection, copies, target, copier)


_Dialled = tuple[socket.socket, Copies, PageShape]  # the shape of the receiver's pages


def _dial(
    raw: bytes, attach: Attach, shape: PageShape, incarnation: int, *, name: str, kind: bytes, seconds: float
) -> _Dialled:
    """Runs in a thread and blocks, each step for `seconds` at most."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        handle = PoolHandle.unpack(raw)
        if handle.kind != kind:
            raise Malformed(f"a handle of {handle.kind!r}, not of this transport")
        connection.settimeout(seconds)
        connection.connect(handle.address)
        if reason := stranger(credentials(connection), os.geteuid()):
            raise TransferError(reason)
        connection.send(Greeting(handle.token, incarnation, handle.receiver, shape).pack())
        copies, target = _take(connection, attach, handle.receiver, shape, name)
        connection.setblocking(False)
        return connection, copies, target
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | ValueError | TransferError):
            raise TransferError(f"{name}: the receiver cannot be reached: {error}") from error
        raise


def _take(
    connection: socket.socket, attach: Attach, receiver: int, shape: PageShape, name: str
) -> tuple[Copies, PageShape]:
    """Receive the welcome with the descriptor, and map it."""
    raw, descriptors, flags, _ = socket.recv_fds(connection, WELCOME_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if not raw:
            raise TransferError("it refused us (a stale handle, or not its user)")
        welcome = Welcome.unpack(raw)
        if (why := transport_obstacle(name, shape, welcome.shape)) or not welcome.accepted:
            raise TransferError(f"our pages are {shape}, the receiver's {welcome.shape}: {why or 'it refuses them'}")
        if welcome.receiver != receiver or len(descriptors) != 1 or flags & socket.MSG_CTRUNC:
            raise Malformed("the welcome carries no pool of the receiver we dialled")
        copies = attach(descriptors[0], welcome.shape, welcome.pages)
        descriptors.clear()  # the mapping's now
        return copies, welcome.shape
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _discard(dialled: _Dialled) -> None:
    connection, copies, _ = dialled
    connection.close()
    copies.close()
