"""Decode's half of transports whose writers map its pool (shared memory, a GPU's memory): the receiver hands the pool's
descriptor to prefill processes of this host and notices their deaths.

A writer of the same user connects to a socket in a private folder, shows the token of its handle and gets the
descriptor. From then on it copies pages straight in (`kvtransfer/mapped_writer.py`), and nothing here can stop a late
write: decode keeps the pages of an ended landing in quarantine until `silent` proves by pidfd that the writer's process
is gone. The socket stays open so that each side notices the other's end; it carries nothing more."""

import asyncio
import hmac
import os
import socket
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Protocol

from kvtransfer.frames import GREETING_BYTES, TOKEN_BYTES, Greeting, Malformed, PoolHandle, Welcome
from kvtransfer.mapped_folder import make_folder, remove_folder
from kvtransfer.mapped_writer import Attach, MappedWriter, connect
from kvtransfer.peer import Process, credentials, open_process, stranger
from kvtransfer.transfer import Arrived, FrameBegins, Pool, every_frame
from mesh.messages.page_fit import transport_obstacle
from mesh.messages.page_shape import PageShape

_WAITING = 64  # connections that have not shown their token yet


class Mappable(Protocol):
    """A pool whose descriptor lets another process reach its memory."""

    fd: int
    pages: int
    shape: PageShape


class MappedTransport(ABC):
    """A `Transport` between processes of one user on one host. Tokens are secrets: hence the system's random source."""

    name: str
    kind: bytes

    def __init__(
        self,
        random: SystemRandom,
        *,
        folder: Path | None = None,
        may_kill: bool = True,
        handshake_seconds: float = 5.0,
    ) -> None:
        """Sockets live in private folders inside `folder` (default: the system's folder for temporary files)."""
        self._random = random
        self._folder = folder or Path(tempfile.gettempdir())
        self._may_kill = may_kill
        self._handshake_seconds = handshake_seconds

    @abstractmethod
    def mappable(self, pool: Pool) -> Mappable:
        """The pool, if writers can map it; TypeError if not."""

    @abstractmethod
    def into(self, pool: Pool) -> Attach:
        """How pages of this pool are copied into the memory that a descriptor opens."""

    def available(self) -> str:
        if sys.platform != "linux":
            return f"shared memory needs Linux (memfd, pidfd), this is {sys.platform}"
        try:
            os.close(os.memfd_create("baton-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            return f"the kernel or a sandbox refuses memfd or pidfd ({error.strerror}): allow both or use tcp"
        if not os.access(self._folder, os.W_OK | os.X_OK):
            return f"no socket can be made in {self._folder}: point TMPDIR to a folder that this user may write"
        return ""

    async def receive(self, pool: Pool, incarnation: int) -> "MappedReceiver":
        return MappedReceiver(
            self.name,
            self.kind,
            self.mappable(pool),
            incarnation,
            random=self._random,
            folder=self._folder,
            may_kill=self._may_kill,
            handshake_seconds=self._handshake_seconds,
        )

    async def connect(self, handle: bytes, pool: Pool, incarnation: int) -> MappedWriter:
        into, seconds = self.into(pool), self._handshake_seconds
        return await connect(handle, into, pool.shape, incarnation, name=self.name, kind=self.kind, seconds=seconds)


@dataclass(slots=True)
class _WriterState:
    """The receiver's record of one writer incarnation."""

    token: bytes | None = None  # token of a handle that is not used yet
    process: Process | None = None  # set when it got the descriptor: it may write as long as this process lives
    sockets: set[socket.socket] = field(default_factory=set)


class MappedReceiver:
    one_sided = True

    def __init__(
        self,
        name: str,
        kind: bytes,
        pool: Mappable,
        incarnation: int,
        *,
        random: SystemRandom,
        folder: Path,
        may_kill: bool,
        handshake_seconds: float,
    ) -> None:
        self.refused: Counter[str] = Counter()  # connections, by reason
        self.name, self._kind = name, kind
        self._pool = pool
        self._incarnation = incarnation
        self._random = random
        self._may_kill = may_kill
        self._handshake_seconds = handshake_seconds
        self._writers: dict[int, _WriterState] = {}
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}  # accepted, token not shown yet
        self._loop = asyncio.get_running_loop()
        self._path, self._listener = make_folder(folder, random)
        self._loop.add_reader(self._listener, self._accept)

    def handle(self, writer: int) -> bytes:
        """A handle serves for one connection; a later call replaces an unused one."""
        token = self._random.randbytes(TOKEN_BYTES)
        self._writers.setdefault(writer, _WriterState()).token = token
        return PoolHandle(self._kind, token, self._incarnation, str(self._path)).pack()

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        """Does nothing: the Landing message tells the writer the pages, and Written reports its copies."""

    def close(self, ticket: bytes) -> None:
        """Does nothing: a late write still lands. Decode keeps the pages in quarantine until `silent` is True."""

    async def silent(self, writer: int, seconds: float) -> bool:
        """True only when the writer's process is dead, or never got the descriptor and from now on cannot get it."""
        peer = self._writers.get(writer)
        if peer is None or peer.process is None:
            self._writers.pop(writer, None)  # an unused handle opens nothing from now on
            return True
        return await peer.process.ended(seconds)

    def kill(self, writer: int) -> bool:
        peer = self._writers.get(writer)
        return self._may_kill and peer is not None and peer.process is not None and peer.process.kill()

    async def aclose(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        remove_folder(self._path)
        for connection in list(self._waiting):
            self._drop(connection)
        for peer in self._writers.values():
            for connection in list(peer.sockets):
                self._hang_up(peer, connection)
            if peer.process is not None:
                peer.process.close()
        self._writers.clear()

    # ---- the handshake, in its order

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        connection.setblocking(False)
        reason = stranger(credentials(connection), os.geteuid())
        if reason:
            self.refused["stranger"] += 1
            connection.close()
            return
        if len(self._waiting) >= _WAITING:  # a writer shows its token at once: the oldest silent one gives way
            self._drop(next(iter(self._waiting)), "crowd")
        late = self._loop.call_later(self._handshake_seconds, self._drop, connection, "late")
        self._waiting[connection] = late
        self._loop.add_reader(connection, self._greeted, connection)

    def _greeted(self, connection: socket.socket) -> None:
        try:
            raw = connection.recv(GREETING_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:  # it closed the connection
            return self._drop(connection)
        try:
            self._admit(connection, Greeting.unpack(raw))
        except Malformed:
            self._drop(connection, "malformed")

    def _admit(self, connection: socket.socket, hello: Greeting) -> None:
        peer = self._writers.get(hello.writer)
        known = peer is not None and peer.token is not None and hmac.compare_digest(peer.token, hello.token)
        if peer is None or not known or hello.receiver != self._incarnation:
            return self._drop(connection, "token")
        accepted = not transport_obstacle(self.name, hello.shape, self._pool.shape)
        welcome = Welcome(accepted, self._incarnation, self._pool.pages, self._pool.shape)
        try:
            if not welcome.accepted:
                connection.send(welcome.pack())
                return self._drop(connection, "shape")
            if not self._watch(hello.writer, peer, connection):  # before it can write
                return self._drop(connection, "process")
            socket.send_fds(connection, [welcome.pack()], [self._pool.fd])
        except OSError:  # it died in between; if it had the descriptor, its process is watched
            return self._drop(connection, "gone")
        peer.token = None
        self._waiting.pop(connection).cancel()
        peer.sockets.add(connection)
        self._loop.remove_reader(connection)
        self._loop.add_reader(connection, self._hang_up, peer, connection)

    def _watch(self, writer: int, peer: _WriterState, connection: socket.socket) -> bool:
        """Open the pidfd of a new writer; an incarnation is one process, so another one is refused."""
        pid = credentials(connection).pid
        if peer.process is None:
            peer.process = Process(pid, open_process(connection, pid), lambda: self._forget(writer))
        return peer.process.pid == pid

    def _forget(self, writer: int) -> None:
        """The writer's process is dead: drop its token and its connections."""
        peer = self._writers.pop(writer, None)
        if peer is not None:
            for connection in list(peer.sockets):
                self._hang_up(peer, connection)

    def _hang_up(self, peer: _WriterState, connection: socket.socket) -> None:
        """The writer closed its end, or sent something, which no writer does. Neither proves that it is dead."""
        self._loop.remove_reader(connection)
        connection.close()
        peer.sockets.discard(connection)

    def _drop(self, connection: socket.socket, reason: str = "") -> None:
        if reason:
            self.refused[reason] += 1
        self._waiting.pop(connection).cancel()
        self._loop.remove_reader(connection)
        connection.close()
