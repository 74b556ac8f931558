"""TCP, decode's half: bytes are received straight into the pages of an open landing, everything else into a sink.

A frame is looked up by its ticket before its bytes are read, and whenever a landing ends, in any way, the rest of its
half-received frames goes into the sink: not one byte lands in a page after `close`. Frames travel over several
connections per writer, so those of one ticket may arrive out of order. A writer shows the token of its handle first;
a connection that does not is cut off after at most one greeting's bytes. With TLS it shows a certificate first."""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import SystemRandom

from kvtransfer.address import bare, dialled_address, obstacle
from kvtransfer.frame_landings import FrameLandings
from kvtransfer.frames import TOKEN_BYTES, Greeting, PoolHandle
from kvtransfer.tcp_connection import TcpConnection
from kvtransfer.tcp_wires import TakenOver, TlsWire
from kvtransfer.tcp_writer import PLAIN, TLS, TcpWriter, connect
from kvtransfer.transfer import Arrived, FrameBegins, Pool, every_frame
from mesh.config.config_checks import ConfigError
from mesh.network.tls import TlsFiles

_SILENT = 256  # connections that have not shown their token yet


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """How a worker listens for pages and sends them."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    advertise_host: str = ""  # what writers dial when `host` is a wildcard
    connections: int = 2  # per writer
    send_buffer_bytes: int | None = None  # None: 2 MiB to a loopback address, else the kernel's own
    bytes_per_second: float | None = None  # per writer; None: no limit
    handshake_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not (0 < self.connections <= 64 and 0 <= self.port < 65536 and self.handshake_seconds > 0):
            raise ValueError(f"tcp: connections {self.connections}, port {self.port}: out of range")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError(f"tcp: bytes_per_second is {self.bytes_per_second}: leave it out for no limit")


class Tcp:
    """A `Transport` between any two workers. Tokens are secrets: hence the system's random source."""

    name = "tcp"

    def __init__(
        self, random: SystemRandom, options: TcpOptions = TcpOptions(), *, tls: TlsFiles | None = None
    ) -> None:
        self._random, self._options, self._tls = random, options, tls

    def available(self) -> str:
        return obstacle("tcp", self._options.host, self._options.advertise_host)

    async def receive(self, pool: Pool, incarnation: int) -> "TcpReceiver":
        if reason := self.available():
            raise ValueError(reason)
        receiver = TcpReceiver(pool, incarnation, self._random, self._options, tls=self._tls)
        await receiver.listen()
        return receiver

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> TcpWriter:
        options = self._options
        return await connect(
            handle,
            pool,
            incarnation,
            tls=self._tls,
            connections=options.connections,
            send_buffer_bytes=options.send_buffer_bytes,
            bytes_per_second=options.bytes_per_second,
            seconds=options.handshake_seconds,
        )


def drain(connections: Iterable[TcpConnection], ticket: bytes) -> None:
    """Rule [sink]: when a landing ends, the rest of its half-received frames goes into the sink. Otherwise those bytes
    land in a page that another request may own by then."""
    for connection in connections:
        connection.sink(ticket)


class TcpReceiver:
    name = "tcp"
    one_sided = False

    def __init__(
        self,
        pool: Pool,
        incarnation: int,
        random: SystemRandom,
        options: TcpOptions,
        *,
        tls: TlsFiles | None,
    ) -> None:
        self.refused: Counter[str] = Counter()  # connections, by reason
        self.incarnation = incarnation
        self.landings = FrameLandings(pool)
        self._random = random
        self._options = options
        self._tls = tls
        self._tokens: dict[int, bytes] = {}  # by writer incarnation
        self._connections: set[TcpConnection] = set()
        self._silent: dict[TcpConnection, None] = {}  # those that have not shown their token, the oldest first
        self._server: asyncio.Server | None = None
        self._address = ""

    async def listen(self) -> None:
        host, port = self._options.host, self._options.port
        loop = asyncio.get_running_loop()
        context = self._tls.listening_context() if self._tls else None
        seconds = self._options.handshake_seconds if self._tls else None
        try:
            self._server = await loop.create_server(
                lambda: TlsWire(self) if context else TakenOver(self),
                bare(host),
                port,
                ssl=context,
                ssl_handshake_timeout=seconds,
            )
        except OSError as error:
            reason = f"transport_host: tcp pages cannot listen on {host}, port {port} ({error.strerror})"
            raise ConfigError(f"{reason}; take an address of this host, or another port") from error
        bound = self._server.sockets[0].getsockname()
        self._address = dialled_address(host, self._options.advertise_host, bound)

    def handle(self, writer: int) -> bytes:
        token = self._tokens.setdefault(writer, self._random.randbytes(TOKEN_BYTES))
        return PoolHandle(TLS if self._tls else PLAIN, token, self.incarnation, self._address).pack()

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        self.close(ticket)
        self.landings.open(ticket, pages, arrived, begins)

    def close(self, ticket: bytes) -> None:
        self.landings.close(ticket)
        drain(self._connections, ticket)

    async def silent(self, writer: int, seconds: float) -> bool:
        return True  # a late frame goes into the sink

    def kill(self, writer: int) -> bool:
        return False  # it may be on another host

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        gone = [connection.cut() for connection in list(self._connections)]
        await asyncio.gather(*gone)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- what its connections call

    @property
    def handshake_seconds(self) -> float:
        return self._options.handshake_seconds

    def joined(self, connection: TcpConnection) -> None:
        """A connection is there. Of too many that have shown no token the oldest gives way: a writer shows its token at
        once, so connections that stay silent delay no writer."""
        self._connections.add(connection)
        self._silent[connection] = None
        if len(self._silent) > _SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.refuse("crowd")

    def greeted(self, connection: TcpConnection) -> None:
        self._silent.pop(connection, None)

    def left(self, connection: TcpConnection) -> None:
        self._connections.discard(connection)
        self._silent.pop(connection, None)

    def knows(self, greeting: Greeting) -> bool:
        """Does the greeting carry the token of the handle that its writer got?"""
        token = self._tokens.get(greeting.writer, b"")
        return hmac.compare_digest(token, greeting.token) and greeting.receiver == self.incarnation
