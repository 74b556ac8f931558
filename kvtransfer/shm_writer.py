"""Shared memory, prefill's half: map decode's pool and copy spans into it, checksums made in the copy's own pass.

One thread per writer does the copying, in the order of the calls. A write returns once the bytes are in decode's
pages; a cancelled one no earlier than the copy it began, so awaiting tells that no write is in flight."""

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import baton_kernels
from kvtransfer.blocking import finish, finish_or_discard
from kvtransfer.peer import credentials, stranger
from kvtransfer.pool import KEY_BYTES, SharedPool, attach, page_addresses, span_table
from kvtransfer.transfer import PageShape, Pool, Span, TransferError
from kvtransfer.wire import WELCOME_BYTES, Handle, Hello, Malformed, Welcome


class SharedMemoryWriter:
    name = "shm"
    one_sided = True

    def __init__(self, connection: socket.socket, target: SharedPool, source: Pool, copier: ThreadPoolExecutor) -> None:
        self.bytes_written = 0
        self._connection = connection
        self._target = target
        self._source = source  # kept: its memory must outlive the copies
        self._from = page_addresses(source)
        self._to = page_addresses(target)
        self._copier = copier
        self._broken = ""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._hung_up)

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        self._check()
        sums = await finish(self._copier, lambda: self._copy(spans))
        self._check()  # the receiver died meanwhile: the bytes went nowhere
        self.bytes_written += sum(self._source.shape.place(span.first_layer, span.layers)[1] for span in spans)
        return sums

    def close(self) -> None:
        """Idempotent. The mapping goes after the copy that runs, if one does."""
        if self._connection.fileno() < 0:
            return
        self._broken = self._broken or "this writer was closed"
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self._copier.submit(self._target.close)
        self._copier.shutdown(wait=False)

    def _copy(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """In the copier's thread."""
        if not spans:
            return ()
        table = span_table(spans, self._source, self._target.pages)
        source, target, layers = table[:, 0], table[:, 1], table[:, 2:]
        sums = np.zeros(len(spans), np.uint64)
        for first, count in np.unique(layers, axis=0).tolist():
            same = np.flatnonzero((layers == (first, count)).all(axis=1))
            offset, length = self._source.shape.place(first, count)
            from_, to = self._from[source[same]] + offset, self._to[target[same]] + offset
            part = np.zeros(len(same), np.uint64)
            baton_kernels.scatter(to, from_, length, np.full(len(same), offset // KEY_BYTES), part)
            sums[same] = part
        return tuple(sums.tolist())

    def _check(self) -> None:
        if self._broken:
            raise TransferError(self._broken)

    def _hung_up(self) -> None:
        """The receiver's end closed: it ended this session, or died. It never sends."""
        self._broken = "the receiver closed its socket"
        self._loop.remove_reader(self._connection)


async def connect(handle: bytes, pool: Pool, incarnation: int, *, kind: bytes, seconds: float) -> SharedMemoryWriter:
    copier = ThreadPoolExecutor(1, thread_name_prefix="baton-copy")
    try:
        dialled = await finish_or_discard(
            copier, lambda: _dial(handle, pool.shape, incarnation, kind=kind, seconds=seconds), _discard
        )
    except BaseException:
        copier.shutdown(wait=False)
        raise
    return SharedMemoryWriter(dialled.connection, dialled.target, pool, copier)


class _Dialled(NamedTuple):
    connection: socket.socket
    target: SharedPool


def _dial(raw: bytes, shape: PageShape, incarnation: int, *, kind: bytes, seconds: float) -> _Dialled:
    """In a thread: blocking, bounded by the time-out of each step."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        handle = Handle.unpack(raw)
        if handle.kind != kind:
            raise Malformed(f"a handle of {handle.kind!r}, not of shared memory")
        connection.settimeout(seconds)
        connection.connect(handle.address)
        if reason := stranger(credentials(connection), os.geteuid()):
            raise TransferError(reason)
        connection.send(Hello(handle.token, incarnation, handle.receiver, shape).pack())
        target = _take(connection, handle.receiver, shape)
        connection.setblocking(False)
        return _Dialled(connection, target)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | ValueError):
            raise TransferError(f"shared memory: the receiver cannot be reached: {error}") from error
        raise


def _take(connection: socket.socket, receiver: int, shape: PageShape) -> SharedPool:
    """Receive the welcome with the descriptor, and map it."""
    raw, descriptors, flags, _ = socket.recv_fds(connection, WELCOME_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if not raw:
            raise TransferError("shared memory: the receiver refused us (a stale handle, or not its user)")
        welcome = Welcome.unpack(raw)
        if not welcome.accepted or welcome.shape != shape:
            raise TransferError(f"shared memory: our pages are {shape}, the receiver's {welcome.shape}")
        if welcome.receiver != receiver or len(descriptors) != 1 or flags & socket.MSG_CTRUNC:
            raise Malformed("the welcome carries no pool of the receiver we dialled")
        target = attach(descriptors[0], welcome.shape, welcome.pages)
        descriptors.clear()  # the pool's now
        return target
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _discard(dialled: _Dialled) -> None:
    dialled.connection.close()
    dialled.target.close()
