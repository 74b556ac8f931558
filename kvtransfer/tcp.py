"""TCP, decode's half: bytes are received straight into the pages of an open landing, everything else into a sink.

A frame is looked up by its ticket when its header is complete, and whenever a landing ends, in any way, the rest of a
half-received frame of it goes into the sink: not one byte lands in a page after `close`. Frames travel over several
connections per writer, so those of one ticket may arrive out of order. A writer shows the token of its handle first;
whoever does not is cut off after at most one greeting's bytes."""

import asyncio
import hmac
import ipaddress
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

from kvtransfer.frames import TOKEN_BYTES, Handle, Hello
from kvtransfer.tcp_connection import Connection, Landings
from kvtransfer.tcp_writer import TcpWriter, connect
from kvtransfer.transfer import Arrived, Pool
from mesh.rules import RULES, Rules

PLAIN, TLS = b"TCP1", b"TLS1"
_WAITING = 64  # connections that have not shown their token yet


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """What an operator may set. With `host` a wildcard, `advertise` says what writers dial."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    advertise: str = ""
    connections: int = 2  # per writer
    send_buffer_bytes: int | None = None  # None: 256 KiB to a loopback address, else the kernel's own
    bytes_per_second: float | None = None  # per writer; None: no limit
    handshake_seconds: float = 5.0
    server_name: str = ""  # expected in the receiver's certificate; empty: its address

    def __post_init__(self) -> None:
        if not (0 < self.connections <= 64 and 0 <= self.port < 65536 and self.handshake_seconds > 0):
            raise ValueError(f"tcp: connections {self.connections}, port {self.port}: out of range")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError(f"tcp: bytes_per_second is {self.bytes_per_second}: leave it out for no limit")


class Tcp:
    """A `Transport` between any two workers. Tokens are secrets: hence the system's random source."""

    name = "tcp"

    def __init__(
        self,
        random: SystemRandom,
        options: TcpOptions = TcpOptions(),
        *,
        listen_tls: ssl.SSLContext | None = None,
        dial_tls: ssl.SSLContext | None = None,
        rules: Rules = RULES,
    ) -> None:
        self._random = random
        self._options = options
        self._listen_tls = listen_tls
        self._dial_tls = dial_tls
        self._rules = rules

    def available(self) -> str:
        if _wildcard(self._options.host) and not self._options.advertise:
            return f"tcp listens on {self._options.host!r}, which nobody can dial: set advertise to this host's address"
        return ""

    async def receive(self, pool: Pool, incarnation: int) -> "TcpReceiver":
        if reason := self.available():
            raise ValueError(reason)
        receiver = TcpReceiver(pool, incarnation, self._random, self._options, tls=self._listen_tls, rules=self._rules)
        await receiver.listen()
        return receiver

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> TcpWriter:
        options = self._options
        return await connect(
            handle,
            pool,
            incarnation,
            kinds={PLAIN: None, TLS: self._dial_tls},
            connections=options.connections,
            send_buffer_bytes=options.send_buffer_bytes,
            bytes_per_second=options.bytes_per_second,
            seconds=options.handshake_seconds,
            server_name=options.server_name,
        )


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
        tls: ssl.SSLContext | None,
        rules: Rules,
    ) -> None:
        self.refused: Counter[str] = Counter()  # connections, by reason
        self.incarnation = incarnation
        self.landings = Landings(pool)
        self._random = random
        self._options = options
        self._tls = tls
        self._rules = rules
        self._tokens: dict[int, bytes] = {}  # by writer incarnation
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._address = ""

    async def listen(self) -> None:
        host, port = self._options.host, self._options.port
        loop = asyncio.get_running_loop()
        seconds = self._options.handshake_seconds if self._tls else None
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            reason = f"tcp pages cannot listen on {host}:{port}: {error.strerror}; choose another port"
            raise OSError(error.errno, reason) from error
        bound = self._server.sockets[0].getsockname()
        self._address = f"{self._options.advertise or bound[0]}:{bound[1]}"

    def handle(self, writer: int) -> bytes:
        token = self._tokens.setdefault(writer, self._random.randbytes(TOKEN_BYTES))
        return Handle(TLS if self._tls else PLAIN, token, self.incarnation, self._address).pack()

    def open(self, ticket: bytes, pages: dict[int, int], arrived: Callable[[Arrived], None]) -> None:
        self.close(ticket)
        self.landings.open(ticket, pages, arrived)

    def close(self, ticket: bytes) -> None:
        self.landings.close(ticket)
        if self._rules.sink:
            for connection in self._connections:
                connection.sink(ticket)

    async def silent(self, writer: int, seconds: float) -> bool:
        return True  # what a two-sided writer still sends goes into the sink

    def kill(self, writer: int) -> bool:
        return False  # it may be on another host

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        gone = [connection.cut() for connection in list(self._connections)]
        await asyncio.gather(*gone)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- what its connections tell it

    @property
    def handshake_seconds(self) -> float:
        return self._options.handshake_seconds

    def joined(self, connection: Connection) -> bool:
        """False: too many strangers at once."""
        crowd = sum(not other.greeted for other in self._connections) >= _WAITING
        self._connections.add(connection)
        return not crowd

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def knows(self, hello: Hello) -> bool:
        token = self._tokens.get(hello.writer, b"")
        return hmac.compare_digest(token, hello.token) and hello.receiver == self.incarnation


def _wildcard(host: str) -> bool:
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
