"""A worker's side of the sessions with its gateways: it registers, serves their Attach streams, reports what changes.

Workers of both tiers hold one `Attachments`. A stream begins with Hello and is the worker's life as that gateway sees
it: when the stream ends, the worker drops the requests of that gateway."""

import asyncio
import logging
from collections.abc import Callable

from mesh.messages.hello_checks import clamped
from mesh.messages.job_check import JobLimits
from mesh.messages.message import AdapterOrder, Drain, Message, Up
from mesh.messages.orders import ClockProbe, Examine, Open, PageQuery, Prefill, Refused, Snapshot, Watch
from mesh.messages.reports import ClockReading, Hello, Load, Lost, Measures, PrefixChange, Register
from mesh.network.interface import Accept, Channel, Listening, Network, Stream, StreamClosed
from mesh.rules import Rules
from mesh.sessions.adapter_book import NO_ADAPTERS, AdapterBook
from mesh.sessions.page_map import PageWatch
from mesh.sessions.page_reports import PageBook, PageReports
from mesh.sessions.reach_log import ReachLog
from mesh.sessions.session import Session

log = logging.getLogger("baton.attach")

LOOK_SECONDS = 5.0  # pause between two looks at which gateways there are, while all of them have dialed
SOON_SECONDS = 0.05  # pause after a gateway's first failure to answer; it doubles up to a heartbeat
MEASURE_SECONDS = 1.0  # shortest time between two Measures
LATE_SECONDS = 0.1  # a loop that is so late has been blocked, whatever else there is to tell


class Attachments:
    def __init__(
        self,
        network: Network,
        *,
        gateways: tuple[str, ...],
        rules: Rules,
        hello: Hello,  # what it has of the worker's address, load and prefix is not read: these change
        load: Callable[[], Load],
        cached: Callable[[], tuple[bytes, ...]],  # block hashes of the prefix cache
        on_message: Callable[[Session, Message], None],
        on_end: Callable[[Session], None],
        pages: PageBook,  # what a gateway that watches gets maps and reports of
        on_activity: Callable[[], None] = lambda: None,  # called before a message is handled
        measures: Callable[[], Measures] | None = None,  # None: gateways get no Measures
        adapters: AdapterBook = NO_ADAPTERS,
    ) -> None:
        self.sessions: list[Session] = []
        self._network, self._gateways, self._rules = network, gateways, rules
        self._hello, self._load_now, self._cached = hello, load, cached
        self._on_message, self._on_end = on_message, on_end
        self._on_activity = on_activity
        self._adapters = adapters
        adapters.tell(self.send_all)
        self._measures, self._measured = measures, Measures((), ())
        self._limits = JobLimits.of(hello)  # what every job must keep within
        self._expired = 0  # sessions that ended because the gateway was silent
        self._reach_log = ReachLog(log)
        self._page_watch, self._page_reports = PageWatch(pages), PageReports(pages)
        self.sequence = 0  # number of the last PrefixChange; a snapshot carries it
        self._load: Load | None = None  # the last of which gateways were told
        self._draining = False
        self._leaves_at: float | None = None  # when gateways must have moved what is left, once that is known
        self.listening: Listening | None = None

    async def listen(self, address: str, also: dict[Channel, Accept] | None = None) -> str:
        self.listening = await self._network.listen(address, {Channel.ATTACH: self._accept, **(also or {})})
        return self.listening.address

    @property
    def incarnation(self) -> int:
        return self._hello.incarnation

    @property
    def address(self) -> str:
        assert self.listening is not None, "listen first"
        return self.listening.address

    async def register(self) -> None:
        """Ask the gateways to dial, again and again, as long as one of them has not. Runs for the worker's life."""
        message = Register(self.address, self._hello.tier, self.incarnation)
        loop = asyncio.get_running_loop()
        soon_seconds, look_at, gateways = SOON_SECONDS, loop.time(), self._gateways
        while True:
            answered = True
            if not self._draining and (len(self.sessions) < len(gateways) or loop.time() >= look_at):
                gateways = tuple([each for name in self._gateways for each in await self._network.resolve(name)])
                look_at = loop.time() + LOOK_SECONDS
            if len(self.sessions) < len(gateways) and not self._draining:
                for gateway in gateways:
                    try:
                        await self._network.register(gateway, message)
                        self._reach_log.reached(f"gateway {gateway}")
                    except StreamClosed as error:
                        answered = False
                        self._reach_log.failed(f"gateway {gateway}", str(error))
            await asyncio.sleep(self._rules.heartbeat_seconds if answered else soon_seconds)
            soon_seconds = min(2 * soon_seconds, self._rules.heartbeat_seconds)

    async def _accept(self, stream: Stream) -> None:
        session = Session(stream, rules=self._rules, name=f"gateway {stream.peer}", on_activity=self._on_activity)
        load, adapters = clamped(self._load_now()), self._adapters.named()
        session.send(self._hello.at(self.address, load, self._prefix(), adapters))
        if self._measures is not None:
            session.send(self._measures())
        if self._draining:
            session.send(self._drain())
        self.sessions.append(session)
        try:
            await session.run(lambda message: self._receive(session, message))
        finally:
            self.sessions.remove(session)
            self._expired += session.expired
            self._adapters.gateway_ended(session)
            self._on_end(session)

    def _receive(self, session: Session, message: Message) -> None:
        if isinstance(message, Snapshot):
            session.send(self._prefix())
        elif isinstance(message, Drain):
            self.drain(None if message.grace_ms is None else message.grace_ms / 1000)
        elif isinstance(message, Watch):
            self._page_watch.watch(session, message.seconds)
        elif isinstance(message, PageQuery):
            self._page_reports.ask(session, message)
        elif isinstance(message, ClockProbe):
            session.send(ClockReading(message.number, asyncio.get_running_loop().time()))
        elif isinstance(message, Refused):
            if message.why:
                log.error("%s sends this worker no requests: %s", session.name, message.why)
            else:
                log.info("%s sends this worker requests again", session.name)
        elif isinstance(message, AdapterOrder):
            self._adapters.order(session, message)
        elif isinstance(message, Open | Prefill | Examine) and (refusal := self._limits.refusal(message)):
            ticket, (reason, why) = message.job.ticket, refusal
            log.error("request %d of %s is refused: %s", ticket.request, session.name, why)
            session.send(Lost(ticket, reason, why))
            self._load = None  # as below
        else:
            self._load = None  # the next report goes out even if it is the same: gateways have counted on it
            self._on_message(session, message)

    # ---- reports: every gateway gets what has changed

    def _prefix(self) -> PrefixChange:
        """The whole prefix cache of this moment."""
        return PrefixChange(self.sequence, self._cached(), (), snapshot=True)

    def report(self, load: Load, added: tuple[bytes, ...], removed: tuple[bytes, ...]) -> None:
        """Send Load if it has changed, and the block hashes that came into or left the prefix cache."""
        messages: list[Up] = []
        if added or removed:
            self.sequence += 1
            messages.append(PrefixChange(self.sequence, added, removed))
        if load != self._load:
            self._load = load
            messages.append(clamped(load))
        for message in messages:
            self.send_all(message)

    def send_all(self, message: Up) -> None:
        for session in self.sessions:
            session.send(message)

    async def push_measures(self, observe_delay: Callable[[float], None]) -> None:
        """Send Measures to every gateway when they have changed. The loop's delay is observed while the worker works,
        so that an idle one has nothing to tell. Runs for the worker's life; without Measures it ends at once."""
        if self._measures is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + MEASURE_SECONDS
            await asyncio.sleep(MEASURE_SECONDS)
            late = max(0.0, loop.time() - due)
            if self.sessions and (late > LATE_SECONDS or self._measures() != self._measured):
                observe_delay(late)
                self._measured = self._measures()
                for session in self.sessions:
                    session.send(self._measured)

    def counts(self) -> dict[str, int]:
        """Sessions with gateways now, and since the start those that ended because the gateway was silent."""
        return {"sessions_gateway": len(self.sessions), "expired_gateway": self._expired}

    def drain(self, grace_seconds: float | None = None) -> None:
        """Ask every gateway to send no new requests, and to hand over what needs longer than the grace period. An
        operator's order comes from a gateway, at most once; a later one counts if it leaves less time."""
        leaves_at = None if grace_seconds is None else asyncio.get_running_loop().time() + grace_seconds
        sooner = leaves_at is not None and (self._leaves_at is None or leaves_at < self._leaves_at)
        if self._draining and not sooner:
            return
        self._draining, self._leaves_at = True, leaves_at if sooner else self._leaves_at
        for session in self.sessions:
            session.send(self._drain())

    def _drain(self) -> Drain:
        if self._leaves_at is None:
            return Drain()
        return Drain(max(0, round((self._leaves_at - asyncio.get_running_loop().time()) * 1000)))

    async def aclose(self) -> None:
        self._page_watch.close()
        self._page_reports.close()
        for session in list(self.sessions):
            session.close()
        if self.listening is not None:
            await self.listening.close()
