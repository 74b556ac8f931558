"""A prefill worker's connections to decode workers: per address one kv.v1 session and one writer of pages.

A link is dialed when the first prompt for its address comes, and redialed for as long as prompts or recent work need
it. A new session begins only after the end of the old one was handled, and it brings a new writer: writes in flight on
the old one complete or fail by themselves."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from kvtransfer.transfer import Pool, TransferError, Transport, Writer
from mesh.messages.kv_messages import KvHello
from mesh.messages.message import Heartbeat, Kv, Message
from mesh.network.interface import Channel, Network, StreamClosed
from mesh.rules import Rules
from mesh.sessions.reach_log import ReachLog
from mesh.sessions.session import Session

log = logging.getLogger("baton.prefill")

REDIAL_SECONDS = (0.05, 2.0)  # first and longest pause between two dials
FORGET_SECONDS = 60.0  # a link is dropped when it was neither reached nor wanted for this time


@dataclass(slots=True)
class DecodeLink:
    address: str
    session: Session | None = None
    writer: Writer | None = None
    incarnation: int = 0  # incarnation of the decode worker at the other end of the session
    ended_seconds: float = 0.0  # when the last session ended
    wanted_seconds: float = 0.0  # when a prompt last used the link
    unreached: str = ""  # transport over which the last dial did not reach decode's pool; the next one does without it

    @property
    def up(self) -> bool:
        return self.session is not None and self.writer is not None and not self.session.ended

    def broke(self, writer: Writer) -> None:
        """This writer can write nothing more. Its session ends, because only the next one brings another writer."""
        if self.writer is writer and self.session is not None:
            self.session.close()

    def send(self, message: Kv) -> None:
        """Without a session the message is dropped: the end of a session already tells decode all it needs."""
        if self.session is not None:
            self.session.send(message)


class PrefillHost(Protocol):
    """The parts of a prefill worker report to the worker that holds them through this protocol."""

    def wake(self) -> None:
        """Something has changed: look again for prompts to ask for, to compute or to report."""

    def from_decode(self, link: DecodeLink, message: Message) -> None: ...

    def link_ended(self, link: DecodeLink) -> None:
        """The session over this link has ended."""

    def link_unreachable(self, link: DecodeLink) -> None:
        """A dial has failed; the link tries again by itself."""


class Links:
    def __init__(
        self,
        host: PrefillHost,
        network: Network,
        *,
        hello: KvHello,
        transports: Mapping[str, Transport],
        pool: Pool,
        rules: Rules,
        on_activity: Callable[[], None] = lambda: None,  # called before a message is handled
    ) -> None:
        self._host = host
        self._network = network
        self._rules = rules
        self._on_activity = on_activity
        self._hello = hello
        self._transports = transports
        self._pool = pool
        self._reach_log = ReachLog(log)
        self._links: dict[str, DecodeLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._expired = 0  # sessions that ended because decode was silent
        self._bytes_before = 0  # bytes that the writers of ended sessions have written

    def to(self, address: str) -> DecodeLink:
        """The link to a decode worker; the first call for an address begins to dial it."""
        if address not in self._links:
            self._links[address] = DecodeLink(address)
            self._tasks[address] = asyncio.get_running_loop().create_task(self._keep(self._links[address]))
        self._links[address].wanted_seconds = asyncio.get_running_loop().time()
        return self._links[address]

    def get(self, address: str) -> DecodeLink | None:
        """The link to a decode worker if there is one; dials nothing."""
        return self._links.get(address)

    def __iter__(self) -> Iterator[DecodeLink]:
        return iter(self._links.values())

    def transport(self, address: str) -> str:
        """Name of the transport that writes to this address now; empty: none."""
        link = self._links.get(address)
        return link.writer.name if link is not None and link.writer is not None else ""

    @property
    def bytes_written(self) -> int:
        """Bytes that all writers have written since the start, repeated spans included."""
        return self._bytes_before + sum(link.writer.bytes_written for link in self._links.values() if link.writer)

    def counts(self) -> dict[str, int]:
        """Page bytes of all writers; sessions with decode workers now, and those whose lease expired."""
        up = sum(link.up for link in self)
        return {"bytes_written": self.bytes_written, "sessions_decode": up, "expired_decode": self._expired}

    async def _keep(self, link: DecodeLink) -> None:
        """Run one session after the other, until no prompt needs the link any more."""
        loop = asyncio.get_running_loop()
        pause, reached = REDIAL_SECONDS[0], loop.time()
        while loop.time() - max(reached, link.wanted_seconds) < FORGET_SECONDS:
            if await self._session(link):
                pause, reached = REDIAL_SECONDS[0], loop.time()
            else:
                self._host.link_unreachable(link)
            await asyncio.sleep(pause)
            pause = min(pause * 2, REDIAL_SECONDS[1])
        del self._links[link.address], self._tasks[link.address]

    async def _session(self, link: DecodeLink) -> bool:
        """Run one session from hello to end. False: none came about."""
        try:
            stream = await self._network.dial(link.address, Channel.KV)
        except StreamClosed as error:
            self._reach_log.failed(f"decode {link.address}", str(error))
            return False
        self._reach_log.reached(f"decode {link.address}")
        session = Session(stream, rules=self._rules, name=f"decode {link.address}", on_activity=self._on_activity)
        transports = without(link.unreached, self._hello.transports)
        session.send(replace(self._hello, transports=transports, secret=secret_for(link.address, self._hello.secret)))
        link.unreached, chosen = "", ""
        try:
            async with asyncio.timeout(self._rules.lease_seconds):
                answer = await stream.receive()
            if not isinstance(answer, KvHello):
                raise StreamClosed(f"{link.address} answered {type(answer).__name__} to KvHello")
            if answer.chosen not in self._transports:
                log.error("decode %s refuses this worker: %s", link.address, answer.why)
                raise StreamClosed(answer.why)
            chosen = answer.chosen
            connecting = self._transports[chosen].connect(answer.handle, self._pool, self._hello.incarnation)
            writer = await self._while_alive(session, connecting)
            if answer.shape != writer.shape:
                writer.close()
                raise TransferError(f"decode describes {answer.shape}, and the pool it hands out has {writer.shape}")
        except (StreamClosed, TimeoutError, TransferError) as error:
            link.unreached = chosen
            log.warning("no session with decode %s: %s", link.address, error or type(error).__name__)
            session.close()
            return False
        link.session = session
        link.writer = writer
        link.incarnation = answer.incarnation
        log.info("pages travel to decode %s over %s: %s", link.address, answer.chosen, answer.why)
        self._host.wake()
        try:
            await session.run(partial(self._host.from_decode, link))
        finally:
            writer.close()
            self._expired += session.expired
            self._bytes_before += writer.bytes_written
            link.session = link.writer = None
            link.ended_seconds = asyncio.get_running_loop().time()
            self._host.link_ended(link)
        return True

    async def _while_alive(self, session: Session, connecting: Coroutine[Any, Any, Writer]) -> Writer:
        """The connected writer. Heartbeats go out meanwhile: to register a pool of many GiB for RDMA takes longer than
        the lease."""
        task = asyncio.ensure_future(connecting)
        try:
            while not task.done():
                if not (await asyncio.wait([task], timeout=self._rules.heartbeat_seconds))[0]:
                    session.send(Heartbeat())
        except BaseException:  # the session's end, or this worker's
            task.cancel()
            for late in await asyncio.gather(task, return_exceptions=True):
                if not isinstance(late, BaseException):
                    late.close()
            raise
        return task.result()

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def without(unreached: str, transports: Sequence[str]) -> tuple[str, ...]:
    """The transports to offer after one has not reached decode, such as RDMA between two networks that are not joined:
    the others, if there are any."""
    return tuple(name for name in transports if name != unreached) or tuple(transports)


def secret_for(address: str, drawn: bytes) -> bytes:
    """The secret of this process for the decode worker at this address; no other worker gets it."""
    return hashlib.blake2b(address.encode(), key=drawn, digest_size=32).digest()
