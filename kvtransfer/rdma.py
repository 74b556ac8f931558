"""Pages between hosts over RDMA, decode's half: the writer's device writes into decode's pages by itself.

A writer dials, shows the token of its handle, and gets a gate: an agent of NIXL that has registered the pool for this
connection alone (`kvtransfer/rdma_gate.py`). From then on decode's processors have no part in a write, and nothing can
stop a late one but the end of the gate, which destroys the key: that is what `silent` does. A dead process is no proof,
because its device may still send. RDMA encrypts nothing: it is for private networks only."""

import asyncio
import hmac
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from random import SystemRandom

from kvtransfer.address import bare, dialled_address, obstacle
from kvtransfer.frames import GREETING_BYTES, TOKEN_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.nixl_agent import Agent, AgentError, RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma_frames import JOINED, READY
from kvtransfer.rdma_gate import Gate
from kvtransfer.rdma_host import missing_device, missing_package, missing_pinned_memory
from kvtransfer.rdma_writer import KIND, RdmaWriter, connect
from kvtransfer.side_channel import notice_silence
from kvtransfer.transfer import Arrived, FrameBegins, Pool, every_frame
from mesh.config.config_checks import ConfigError
from mesh.messages.page_fit import transport_obstacle

log = logging.getLogger("baton.kvtransfer")


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """How a worker listens for writers, and how long it waits."""

    host: str = "127.0.0.1"
    advertise_host: str = ""  # what writers dial when `host` is a wildcard
    fabric: RdmaFabric = RdmaFabric()
    handshake_seconds: float = 5.0  # until a connection has shown its token
    join_seconds: float = 120.0  # from then until bytes can flow: to pin a pool of many GiB takes long
    write_seconds: float = 30.0  # a write that takes longer is given up, and with it the connection


class Rdma:
    """A `Transport` between any two workers with RDMA devices. Tokens are secrets: hence the system's random source."""

    name = "rdma"

    def __init__(self, random: SystemRandom, options: RdmaOptions = RdmaOptions()) -> None:
        self._random, self._options = random, options

    def available(self) -> str:
        options = self._options
        if reason := obstacle("rdma", options.host, options.advertise_host) or missing_package():
            return reason
        if options.fabric.imitated:
            return ""
        return missing_device() or missing_pinned_memory() or unusable(options.fabric)

    async def receive(self, pool: Pool, incarnation: int) -> "RdmaReceiver":
        receiver = RdmaReceiver(in_host_memory(pool), incarnation, self._random, self._options)
        await receiver.listen()
        return receiver

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> RdmaWriter:
        options = self._options
        return await connect(
            handle,
            in_host_memory(pool),
            incarnation,
            fabric=options.fabric,
            seconds=options.handshake_seconds,
            join_seconds=options.join_seconds,
            write_seconds=options.write_seconds,
        )


def in_host_memory(pool: Pool) -> SharedPool:
    if not isinstance(pool, SharedPool):
        raise TypeError(f"RDMA moves pages between SharedPools, not {type(pool).__name__}")
    return pool


@cache
def unusable(fabric: RdmaFabric) -> str:
    """Why NIXL makes no agent over this fabric, which takes half a second to find out; empty when it does."""
    try:
        Agent("baton-probe", fabric).destroy()
    except (AgentError, ImportError) as error:
        advice = "its package knows the cards of NVIDIA only, see RDMA in docs/operations.md for others"
        return f"NIXL cannot use this host's device ({error}): {advice}"
    return ""


def withdraw(gates: Collection[Gate]) -> None:
    """Begin to destroy the keys of these gates."""
    for gate in gates:
        gate.end()


def key_is_gone(gates: Collection[Gate]) -> bool:
    """Rule [key]: a writer is silent once every key that it got is destroyed here. Otherwise its device still sends,
    though its process is dead, into a page that another request owns by then."""
    return not gates


class RdmaReceiver:
    name = "rdma"
    one_sided = True

    def __init__(self, pool: SharedPool, incarnation: int, random: SystemRandom, options: RdmaOptions) -> None:
        self.refused: Counter[str] = Counter()  # connections, by reason
        self._pool, self._incarnation, self._random, self._options = pool, incarnation, random, options
        self._tokens: dict[int, bytes] = {}  # by writer incarnation: of a handle that is not used yet
        self._gates: dict[int, set[Gate]] = {}  # by writer incarnation: those whose key is not destroyed yet
        self._numbers = itertools.count()
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._address = ""

    async def listen(self) -> None:
        host = self._options.host
        try:
            self._server = await asyncio.start_server(self._accepted, bare(host), 0)
        except OSError as error:
            reason = f"transport_host: rdma cannot listen on {host} ({error.strerror})"
            raise ConfigError(f"{reason}; take an address of this host") from error
        bound = self._server.sockets[0].getsockname()
        self._address = dialled_address(host, self._options.advertise_host, bound)

    def handle(self, writer: int) -> bytes:
        """A handle serves for one connection; a later call replaces an unused one."""
        token = self._tokens[writer] = self._random.randbytes(TOKEN_BYTES)
        return PoolHandle(KIND, token, self._incarnation, self._address).pack()

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        """Does nothing: the Landing message tells the writer the pages, and Written reports what it has written."""

    def close(self, ticket: bytes) -> None:
        """Does nothing: a late write still lands. Decode keeps the pages in quarantine until `silent` is True."""

    async def silent(self, writer: int, seconds: float) -> bool:
        """True only when no key of this writer is left, nor a handle that could bring it one. With time to wait the
        keys are destroyed: the session is over. Without, nothing changes: it may be in use."""
        gates = self._gates.get(writer, set())
        if seconds > 0:
            self._tokens.pop(writer, None)
            withdraw(gates)
            try:
                async with asyncio.timeout(seconds):
                    while not key_is_gone(gates):
                        await next(iter(gates)).gone.wait()
            except TimeoutError:
                pass  # it goes on, and a later look finds the keys gone
        return writer not in self._tokens and key_is_gone(gates)

    def kill(self, writer: int) -> bool:
        return False  # it may be on another host, and its death would prove nothing

    async def aclose(self) -> None:
        self._tokens.clear()
        if self._server is not None:
            self._server.close()
        for gates in list(self._gates.values()):
            for gate in gates:
                gate.end()
        for talk in self._talks - {gate.talk for gates in self._gates.values() for gate in gates}:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- one writer's connection, from its greeting to the end of its gate

    def _accepted(self, reader: asyncio.StreamReader, stream: asyncio.StreamWriter) -> None:
        talk = asyncio.ensure_future(self._talk(reader, stream))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, stream: asyncio.StreamWriter) -> None:
        notice_silence(stream.get_extra_info("socket"))
        try:
            async with asyncio.timeout(self._options.handshake_seconds):
                greeting = await self._admitted(reader, stream)
            if greeting is not None:
                await self._serve(greeting, reader, stream)
        except Malformed as error:
            self._refuse("malformed", error)
        except TimeoutError:
            self._refuse("late", "no token, or not joined, in time")
        except AgentError as error:
            self._refuse("agent", error)
        except (OSError, EOFError) as error:
            self._refuse("gone", error)
        finally:
            stream.close()

    def _refuse(self, reason: str, why: object) -> None:
        self.refused[reason] += 1
        log.warning("rdma: a writer's connection was refused or lost (%s): %s", reason, why)

    async def _admitted(self, reader: asyncio.StreamReader, stream: asyncio.StreamWriter) -> Greeting | None:
        """The greeting of a writer that shows the token of its handle; None when it was refused."""
        greeting = Greeting.unpack(await reader.readexactly(GREETING_BYTES))
        known = hmac.compare_digest(self._tokens.get(greeting.writer, b""), greeting.token)
        if not known or greeting.receiver != self._incarnation:
            self._refuse("token", "its handle is stale, or it has none")
            return None
        accepted = not transport_obstacle("rdma", greeting.shape, self._pool.shape)
        welcome = Welcome(accepted, self._incarnation, self._pool.pages, self._pool.shape)
        stream.write(welcome.pack())
        if not welcome.accepted:
            self._refuse("shape", f"its pages are {greeting.shape}")
            return None
        del self._tokens[greeting.writer]
        return greeting

    async def _serve(self, greeting: Greeting, reader: asyncio.StreamReader, stream: asyncio.StreamWriter) -> None:
        """Open a gate for the writer, and end it when the connection ends. A writer that sees the connection close
        knows that its key is destroyed."""
        talk, name = asyncio.current_task(), f"decode-{self._incarnation:x}-{next(self._numbers)}"
        assert talk is not None
        gate = Gate(name, self._pool, self._options.fabric, talk)
        gates = self._gates.setdefault(greeting.writer, set())
        gates.add(gate)
        try:
            async with asyncio.timeout(self._options.join_seconds):
                stream.write((await gate.open()).pack())
                if await reader.readexactly(len(JOINED)) != JOINED or not gate.probed_by(greeting):
                    raise Malformed("the writer joined without writing its probe")
            stream.write(READY)
            gate.rest()
            await reader.read(1)
        finally:
            if await gate.destroyed():
                gates.discard(gate)
                if not gates and self._gates.get(greeting.writer) is gates:
                    del self._gates[greeting.writer]
                gate.gone.set()
