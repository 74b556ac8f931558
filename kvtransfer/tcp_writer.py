"""TCP, prefill's half: headers and views of pages go to the socket by scatter-gather, without a copy in this process.
Where the two pools' pages differ, each page is converted first, batch by batch.

A write divides its frames among the connections: each takes the next batch when it can send. When a write returns, the
kernel has the bytes, so the source may change. A cancelled write finishes the batches that it began, since half a frame
would break the stream, and sends no more. A broken connection breaks the writer."""

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvtransfer.address import host_and_port
from kvtransfer.blocking import finish_or_discard, settled
from kvtransfer.frames import TICKET_BYTES, WELCOME_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.pool import span_table
from kvtransfer.portion_reader import MOST_TCP_FRAMES
from kvtransfer.portions import PackedFrames
from kvtransfer.span_reader import span_reader
from kvtransfer.tcp_socket import TcpSocket
from kvtransfer.transfer import Pool, Span, TransferError
from mesh.messages.page_fit import transport_obstacle
from mesh.messages.page_shape import PageShape
from mesh.network.tls import TlsFiles
from mesh.network.tls_advice import with_advice

PLAIN, TLS = b"TCP1", b"TLS1"  # kinds of handles

# A socket has room for several batches: with room for one, the two sides take turns, and neither copies while the other
# does. Large batches take few turns of the event loop.
_LEAST_BATCH_BYTES, _MOST_BATCH_BYTES, _BATCHES_IN_BUFFER = 256 * 1024, 1024 * 1024, 4
LOOPBACK_SEND_BUFFER_BYTES = 2048 * 1024  # the kernel doubles it, and may have a lower limit
_BURST_SECONDS = 0.005


class TcpWriter:
    name = "tcp"
    one_sided = False

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        source: Pool,
        target_pages: int,
        bytes_per_second: float | None,
        *,
        shape: PageShape,
    ) -> None:
        self.bytes_written, self.shape = 0, shape
        self._source, self._spans = source, span_reader(source, shape)
        self._target_pages = target_pages
        self._broken = ""
        self._batch_bytes = batch_bytes(min(each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for each in sockets))
        self._sockets = [TcpSocket(connection, self._lost) for connection in sockets]
        self._turn = 0
        self.throttle = Throttle(bytes_per_second) if bytes_per_second else None

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        if self._broken:
            raise TransferError(self._broken)
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket has {TICKET_BYTES} bytes, not {len(ticket)}")
        span_table(spans, self._source, self._target_pages)  # refuse before anything is sent
        frames, sums = PackedFrames(ticket, spans, round, self.shape), [0] * len(spans)
        todo = deque(batches(frames.lengths, self._batch_bytes))
        pumps = [
            asyncio.ensure_future(self._pump(connection, spans, frames, todo, sums))
            for connection in self._choose(len(todo))
        ]
        try:
            if pumps:
                await asyncio.wait(pumps)
        except asyncio.CancelledError:
            todo.clear()
            await settled(pumps)
            raise
        for error in [pump.exception() for pump in pumps]:
            if error is not None:
                raise error
        return tuple(sums)

    def close(self) -> None:
        self._lost("this writer was closed")

    async def _pump(
        self,
        connection: TcpSocket,
        spans: Sequence[Span],
        frames: PackedFrames,
        todo: deque[tuple[int, int]],
        sums: list[int],
    ) -> None:
        """One connection's share of a write, batch by batch: writes of other tickets take their turns in between."""
        while todo:
            async with connection.turn:
                if not todo:
                    return
                begin, end = todo.popleft()
                views, sums[begin:end] = self._spans.read_all(spans[begin:end])
                buffers = [memoryview(frames.portion(begin, end, sums[begin:end])), *views]
                size = sum(frames.lengths[begin:end])
                if self.throttle:
                    await self.throttle.take(size + len(buffers[0]))
                await connection.send(buffers)
                self.bytes_written += size
            await asyncio.sleep(0)

    def _choose(self, batches: int) -> list[TcpSocket]:
        """Picks as many connections as the write has batches; successive writes begin at different ones."""
        count = min(len(self._sockets), batches)
        self._turn += count
        return [self._sockets[(self._turn + step) % len(self._sockets)] for step in range(count)]

    def _lost(self, reason: str) -> None:
        """One lost connection ends all: frames are missing, and only a new session sends them again."""
        if not self._broken:
            self._broken = reason
            for connection in self._sockets:
                connection.close(reason)


def batch_bytes(send_buffer_bytes: int) -> int:
    return max(_LEAST_BATCH_BYTES, min(_MOST_BATCH_BYTES, send_buffer_bytes // _BATCHES_IN_BUFFER))


def batches(lengths: Sequence[int], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Spans of these lengths, in their order, in groups that are sent as one portion each: from and up to a span."""
    begin = size = 0
    for end, length in enumerate(lengths, 1):
        size += length
        if size >= most_bytes or end - begin == MOST_TCP_FRAMES or end == len(lengths):
            yield begin, end
            begin, size = end, 0


class Throttle:
    """Limits the bytes per second, exactly in the long run; after idle time it lets a short burst through."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second  # may be changed at any time
        self._free = 0.0  # time at which all bytes so far have passed at that rate

    async def take(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now - _BURST_SECONDS) + size / self.bytes_per_second
        if self._free > now:
            await asyncio.sleep(self._free - now)


async def connect(
    handle: bytes,
    pool: Pool,
    incarnation: int,
    *,
    tls: TlsFiles | None,
    connections: int,
    send_buffer_bytes: int | None,
    bytes_per_second: float | None,
    seconds: float,
) -> TcpWriter:
    """Dial the receiver that the handle names, `connections` times. A worker that has TLS files never sends in plain
    text, one that has none never dials a receiver that wants TLS."""
    target = _parse(handle, TLS if tls else PLAIN)
    greeting = Greeting(target.token, incarnation, target.receiver, pool.shape).pack()

    def dial() -> tuple[list[socket.socket], Welcome]:
        opened: list[socket.socket] = []
        try:
            host, port = host_and_port(target.address)
            for _ in range(connections):
                opened.append(_dial(host, port, tls, seconds, send_buffer_bytes))
                opened[-1].sendall(greeting)
            welcomes = [_welcome(connection, target.receiver, pool.shape) for connection in opened]
            for connection in opened:
                connection.setblocking(False)
            return opened, welcomes[0]
        except BaseException as error:
            for connection in opened:
                connection.close()
            if isinstance(error, OSError | ValueError):
                problem = with_advice(str(error), tls=tls is not None, name=tls.name if tls else "")
                raise TransferError(f"tcp: {target.address} cannot be reached: {problem}") from error
            raise

    dialler = ThreadPoolExecutor(1, thread_name_prefix="baton-dial")
    try:
        sockets, welcome = await finish_or_discard(dialler, dial, _discard)
    finally:
        dialler.shutdown(wait=False)
    return TcpWriter(sockets, pool, welcome.pages, bytes_per_second, shape=welcome.shape)


def _parse(raw: bytes, kind: bytes) -> PoolHandle:
    try:
        handle = PoolHandle.unpack(raw)
        if handle.kind not in (PLAIN, TLS):
            raise Malformed(f"a handle of {handle.kind!r}, not of tcp")
        if handle.kind != kind:
            theirs, ours = ("", "no ") if handle.kind == TLS else ("no ", "")
            raise Malformed(f"the receiver has {theirs}TLS files, this worker has {ours}TLS files: set tls_* on both")
    except ValueError as error:
        raise TransferError(f"tcp: {error}") from error
    return handle


def _dial(host: str, port: int, tls: TlsFiles | None, seconds: float, send_buffer_bytes: int | None) -> socket.socket:
    """Connect and, with TLS, check the receiver's certificate. Runs in a thread."""
    connection = socket.create_connection((host, port), timeout=seconds)
    try:
        if send_buffer_bytes is None and ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
            send_buffer_bytes = LOOPBACK_SEND_BUFFER_BYTES
        if send_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        return tls.dialling_context().wrap_socket(connection, server_hostname=tls.name or host)
    except BaseException:
        connection.close()
        raise


def _welcome(connection: socket.socket, receiver: int, shape: PageShape) -> Welcome:
    raw = bytearray()
    while len(raw) < WELCOME_BYTES:
        piece = connection.recv(WELCOME_BYTES - len(raw))
        if not piece:
            raise Malformed("the receiver refused us: a stale handle, or another release")
        raw += piece
    welcome = Welcome.unpack(raw)
    if (why := transport_obstacle("tcp", shape, welcome.shape)) or not welcome.accepted:
        raise Malformed(f"our pages are {shape}, the receiver's {welcome.shape}: {why or 'it refuses them'}")
    if welcome.receiver != receiver:
        raise Malformed("another process answers at the receiver's address")
    return welcome


def _discard(dialled: tuple[list[socket.socket], Welcome]) -> None:
    for connection in dialled[0]:
        connection.close()
