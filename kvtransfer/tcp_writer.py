"""TCP, prefill's half: header and page views go to the socket by scatter-gather, without a copy of ours.

A write shares its frames among the connections: each takes the next batch when it can send. The kernel has the bytes
when a write returns, so the source may change. A cancelled write sends its begun batches to the end, since half a frame
would break the stream, and no more. Any broken connection breaks the writer."""

import asyncio
import ipaddress
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvtransfer.blocking import finish_or_discard, settled
from kvtransfer.frames import FRAME_BYTES, TICKET_BYTES, WELCOME_BYTES, Frame, Handle, Hello, Malformed, Welcome
from kvtransfer.pool import span_table
from kvtransfer.tcp_link import Link
from kvtransfer.transfer import PageShape, Pool, Span, TransferError

_BATCH_BYTES = 256 * 1024
_BATCH_FRAMES = 64
_LOOPBACK_SEND_BUFFER_BYTES = 256 * 1024  # more runs ahead of the receiver and out of the cache
_BURST_SECONDS = 0.005


class TcpWriter:
    name = "tcp"
    one_sided = False

    def __init__(
        self, sockets: Sequence[socket.socket], source: Pool, target_pages: int, bytes_per_second: float | None
    ) -> None:
        self.bytes_written = 0
        self._source = source
        self._target_pages = target_pages
        self._broken = ""
        self._links = [Link(connection, self._lost) for connection in sockets]
        self._turn = 0
        self.throttle = Throttle(bytes_per_second) if bytes_per_second else None

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        if self._broken:
            raise TransferError(self._broken)
        if len(ticket) != TICKET_BYTES:
            raise ValueError(f"a ticket has {TICKET_BYTES} bytes, not {len(ticket)}")
        span_table(spans, self._source, self._target_pages)  # refuse before anything is sent
        sums = [0] * len(spans)
        todo = deque(enumerate(spans))
        pumps = [asyncio.ensure_future(self._pump(link, ticket, round, todo, sums)) for link in self._choose(spans)]
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
        self, link: Link, ticket: bytes, round: int, todo: deque[tuple[int, Span]], sums: list[int]
    ) -> None:
        """One connection's share of a write, batch by batch: writes of other tickets take their turns in between."""
        while todo:
            async with link.turn:
                buffers: list[memoryview] = []
                size = 0
                while todo and size < _BATCH_BYTES and len(buffers) < 2 * _BATCH_FRAMES:
                    place, span = todo.popleft()
                    sums[place] = self._frame(ticket, span, round, buffers)
                    size += len(buffers[-1])
                if self.throttle:
                    await self.throttle.take(size + len(buffers) // 2 * FRAME_BYTES)
                await link.send(buffers)
                self.bytes_written += size
            await asyncio.sleep(0)

    def _frame(self, ticket: bytes, span: Span, round: int, buffers: list[memoryview]) -> int:
        """Append a span's header and bytes; returns its checksum."""
        view = self._source.view(span.source, span.first_layer, span.layers)
        checksum = self._source.checksum(span.source, span.first_layer, span.layers)
        frame = Frame(ticket, span.index, span.first_layer, span.layers, round, checksum, len(view))
        buffers += [memoryview(frame.pack()), view]
        return checksum

    def _choose(self, spans: Sequence[Span]) -> list[Link]:
        """As many connections as there are batches; they take turns."""
        size = sum(self._source.shape.place(span.first_layer, span.layers)[1] for span in spans)
        count = min(len(self._links), len(spans), -(-size // _BATCH_BYTES))
        self._turn += count
        return [self._links[(self._turn + step) % len(self._links)] for step in range(count)]

    def _lost(self, reason: str) -> None:
        """One connection down, all down: frames are missing, and only a new session repeats them."""
        if not self._broken:
            self._broken = reason
            for link in self._links:
                link.close(reason)


class Throttle:
    """Lets so many bytes per second through, exactly in the long run; idle time saves up a short burst only."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second  # may be changed at any time
        self._free = 0.0  # when everything that was let through has passed at that rate

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
    kinds: Mapping[bytes, ssl.SSLContext | None],
    connections: int,
    send_buffer_bytes: int | None,
    bytes_per_second: float | None,
    seconds: float,
    server_name: str,
) -> TcpWriter:
    """`kinds` says with what to dial a handle of that kind; the kind that begins with TLS must have a context."""
    target = _parse(handle, kinds)
    host, port = target.address.rsplit(":", 1)
    context = kinds[target.kind]
    hello = Hello(target.token, incarnation, target.receiver, pool.shape).pack()

    def dial() -> tuple[list[socket.socket], Welcome]:
        opened: list[socket.socket] = []
        try:
            for _ in range(connections):
                opened.append(_dial(host, int(port), context, server_name or host, seconds, send_buffer_bytes))
                opened[-1].sendall(hello)
            welcomes = [_welcome(connection, target.receiver, pool.shape) for connection in opened]
            for connection in opened:
                connection.setblocking(False)
            return opened, welcomes[0]
        except BaseException as error:
            for connection in opened:
                connection.close()
            if isinstance(error, OSError | ValueError):
                raise TransferError(f"tcp: {target.address} cannot be reached: {error}") from error
            raise

    dialler = ThreadPoolExecutor(1, thread_name_prefix="baton-dial")
    try:
        sockets, welcome = await finish_or_discard(dialler, dial, _discard)
    finally:
        dialler.shutdown(wait=False)
    return TcpWriter(sockets, pool, welcome.pages, bytes_per_second)


def _parse(raw: bytes, kinds: Mapping[bytes, ssl.SSLContext | None]) -> Handle:
    try:
        handle = Handle.unpack(raw)
        if handle.kind not in kinds:
            raise Malformed(f"a handle of {handle.kind!r}, not of tcp")
        if handle.kind.startswith(b"TLS") and kinds[handle.kind] is None:
            raise Malformed("the receiver wants TLS, and this worker was given no certificates to dial with")
    except ValueError as error:
        raise TransferError(f"tcp: {error}") from error
    return handle


def _dial(
    host: str, port: int, context: ssl.SSLContext | None, name: str, seconds: float, send_buffer_bytes: int | None
) -> socket.socket:
    """In a thread: connected and, with TLS, shaken hands."""
    connection = socket.create_connection((host.strip("[]"), port), timeout=seconds)
    try:
        if send_buffer_bytes is None and ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
            send_buffer_bytes = _LOOPBACK_SEND_BUFFER_BYTES
        if send_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(connection, server_hostname=name) if context else connection
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
    if not welcome.accepted or welcome.shape != shape:
        raise Malformed(f"our pages are {shape}, the receiver's {welcome.shape}")
    if welcome.receiver != receiver:
        raise Malformed("another process answers at the receiver's address")
    return welcome


def _discard(dialled: tuple[list[socket.socket], Welcome]) -> None:
    for connection in dialled[0]:
        connection.close()
