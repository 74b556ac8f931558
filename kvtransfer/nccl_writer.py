"""NCCL, prefill's half: it gathers spans into blocks on the device, sends frames over TCP and the blocks over NCCL.

One thread per writer sends, in the order of the calls. A write returns when NCCL has read the blocks; a cancelled write
ends no earlier than what it began to send. A receiver that hangs up, while the two are joining or later, breaks the
writer and aborts the call that waits for it."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kvtransfer.address import host_and_port
from kvtransfer.blocking import attend, finish, finish_or_discard
from kvtransfer.device_pool import DevicePool, check_spans, portions
from kvtransfer.frames import TICKET_BYTES, Malformed, PoolHandle
from kvtransfer.nccl_library import UNIQUE_BYTES, Broken, Communicator, Communicators
from kvtransfer.portions import MOST_FRAMES, pack_portion
from kvtransfer.side_channel import dial, greet, hung_up, take
from kvtransfer.transfer import Span, TransferError


class NcclWriter:
    name = "nccl"
    one_sided = False

    def __init__(
        self,
        connection: socket.socket,
        pair: Communicator,
        source: DevicePool,
        target_pages: int,
        sender: ThreadPoolExecutor,
    ) -> None:
        self.bytes_written, self.shape = 0, source.shape  # the receiver's pages have the same one
        self._connection, self._pair, self._source = connection, pair, source
        self._target_pages, self._sender = target_pages, sender
        self._broken = ""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._lost, "nccl: the receiver closed the connection")

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket has {TICKET_BYTES} bytes, not {len(ticket)}")
        self._check()
        try:
            sums = await finish(self._sender, lambda: self._send(ticket, spans, round))
        except IndexError:
            raise
        except (OSError, RuntimeError) as error:
            self._lost(f"nccl: {error}")
            raise TransferError(f"nccl: {error}") from error
        self._check()
        self.bytes_written += sum(self._source.shape.place(span.first_layer, span.layers)[1] for span in spans)
        return sums

    def close(self) -> None:
        self._lost("this writer was closed")

    def _send(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        """Runs in the sender's thread."""
        check_spans(spans, self._source.shape, self._source.pages, self._target_pages)
        sums = list[int]()
        for part in portions(spans, self._source.shape, most=MOST_FRAMES):
            with self._source.driver.beside():
                blocks, found = self._source.blocks.gather(part)
            self._connection.sendall(pack_portion(ticket, part, round, found, self._source.shape))
            for block in blocks:
                self._pair.send(block)
            sums += found
        return tuple(sums)

    def _check(self) -> None:
        if self._broken:
            raise TransferError(self._broken)

    def _lost(self, reason: str) -> None:
        """Idempotent. The socket is closed after the thread's last use of it."""
        if self._broken:
            return
        self._broken = reason
        self._loop.remove_reader(self._connection)
        self._pair.abort()
        self._sender.submit(self._connection.close)
        self._sender.shutdown(wait=False)


async def connect(
    raw: bytes, kind: bytes, pool: DevicePool, incarnation: int, *, communicators: Communicators, seconds: float
) -> NcclWriter:
    def join() -> tuple[socket.socket, int, bytes]:
        """Runs in a thread. The receiver begins to join as soon as it has sent its welcome."""
        handle = PoolHandle.unpack(raw)
        if handle.kind != kind:
            raise Malformed(f"a handle of {handle.kind!r}, not of nccl")
        connection = dial(host_and_port(handle.address), seconds)
        try:
            welcome = greet(connection, handle, incarnation, pool.shape, name="nccl")
            return connection, welcome.pages, take(connection, UNIQUE_BYTES)
        except BaseException:
            connection.close()
            raise

    sender = ThreadPoolExecutor(1, thread_name_prefix="baton-nccl")
    try:
        connection, pages, unique = await finish_or_discard(sender, join, lambda late: late[0].close())
        pair = communicators.pair(unique, 1, pool.driver.device)
        try:
            await attend(sender, pair.join, look=lambda: _check_there(connection), end=pair.abort, seconds=seconds)
        except BaseException:
            connection.close()
            raise
    except (OSError, ValueError) as error:
        sender.shutdown(wait=False)
        why = str(error) or f"not joined within {seconds:g} s"
        raise TransferError(f"nccl: the receiver cannot be reached: {why}") from error
    except BaseException:
        sender.shutdown(wait=False)
        raise
    return NcclWriter(connection, pair, pool, pages, sender)


def _check_there(connection: socket.socket) -> None:
    """Broken when the receiver hung up."""
    if hung_up(connection):
        raise Broken("it hung up while the two were joining")
