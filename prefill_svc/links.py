"""A prefill worker's ways to decode workers: one kv.v1 session and one writer each, dialed once and then kept.

A link redials for as long as prompts or recent work need it. A new session begins only after the end of the old one was
handled, and it carries a new writer: what was in flight on the old one has completed or failed by itself."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvtransfer.transfer import Pool, TransferError, Transport, Writer
from mesh.messages import Kv, KvHello, Message
from mesh.network import Channel, Network, StreamClosed
from mesh.rules import Rules
from mesh.session import Session

log = logging.getLogger("baton.prefill")

REDIAL_SECONDS = (0.05, 2.0)  # first and longest pause
FORGET_SECONDS = 60.0  # a decode worker that nobody could reach for so long


@dataclass(slots=True)
class DecodeLink:
    address: str
    session: Session | None = None
    writer: Writer | None = None
    incarnation: int = 0
    ended_seconds: float = 0.0  # when the last session ended
    wanted_seconds: float = 0.0  # when a prompt last asked for it

    @property
    def up(self) -> bool:
        return self.session is not None and self.writer is not None and not self.session.ended

    def send(self, message: Kv) -> None:
        if self.session is not None:
            self.session.send(message)


class Links:
    def __init__(
        self,
        network: Network,
        *,
        hello: KvHello,
        transports: Mapping[str, Transport],
        pool: Pool,
        rules: Rules,
        on_up: Callable[[DecodeLink], None],
        on_message: Callable[[DecodeLink, Message], None],
        on_end: Callable[[DecodeLink], None],
        on_unreachable: Callable[[DecodeLink], None],
    ) -> None:
        self._network, self._hello, self._transports, self._pool = network, hello, transports, pool
        self._rules, self._on_up, self._on_message, self._on_end = rules, on_up, on_message, on_end
        self._on_unreachable = on_unreachable
        self._links: dict[str, DecodeLink] = {}
        self._bytes_before = 0  # written by writers of ended sessions
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def to(self, address: str) -> DecodeLink:
        """The link to a decode worker; dials it if this is the first prompt for it."""
        if address not in self._links:
            self._links[address] = DecodeLink(address)
            self._tasks[address] = asyncio.get_running_loop().create_task(self._keep(self._links[address]))
        self._links[address].wanted_seconds = asyncio.get_running_loop().time()
        return self._links[address]

    def __iter__(self) -> Iterator[DecodeLink]:
        return iter(self._links.values())

    def get(self, address: str) -> DecodeLink | None:
        return self._links.get(address)

    @property
    def bytes_written(self) -> int:
        """By all writers since the start, spans that were sent again included."""
        return self._bytes_before + sum(link.writer.bytes_written for link in self._links.values() if link.writer)

    async def _keep(self, link: DecodeLink) -> None:
        loop = asyncio.get_running_loop()
        pause, reached = REDIAL_SECONDS[0], loop.time()
        while loop.time() - max(reached, link.wanted_seconds) < FORGET_SECONDS:
            if await self._session(link):
                pause, reached = REDIAL_SECONDS[0], loop.time()
            else:
                self._on_unreachable(link)
            await asyncio.sleep(pause)
            pause = min(pause * 2, REDIAL_SECONDS[1])
        del self._links[link.address], self._tasks[link.address]

    async def _session(self, link: DecodeLink) -> bool:
        """One session from hello to end; False if none came about."""
        try:
            stream = await self._network.dial(link.address, Channel.KV)
        except StreamClosed:
            return False
        session = Session(stream, rules=self._rules, name=f"decode {link.address}")
        session.send(self._hello)
        try:
            answer = await asyncio.wait_for(stream.receive(), self._rules.lease_seconds)
            if not isinstance(answer, KvHello):
                raise StreamClosed(f"{link.address} answered {type(answer).__name__} to KvHello")
            if answer.chosen not in self._transports:
                log.error("decode %s refuses this worker: %s", link.address, answer.why)
                raise StreamClosed(answer.why)
            writer = await self._transports[answer.chosen].connect(answer.handle, self._pool, self._hello.incarnation)
        except (StreamClosed, TimeoutError, TransferError) as error:
            log.warning("no session with decode %s: %s", link.address, error or type(error).__name__)
            session.close()
            return False
        link.session, link.writer, link.incarnation = session, writer, answer.incarnation
        log.info("pages travel to decode %s over %s: %s", link.address, answer.chosen, answer.why)
        self._on_up(link)
        try:
            await session.run(lambda message: self._on_message(link, message))
        finally:
            writer.close()
            self._bytes_before += writer.bytes_written
            link.session = link.writer = None
            link.ended_seconds = asyncio.get_running_loop().time()
            self._on_end(link)
        return True

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
