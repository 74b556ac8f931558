"""Decode's sessions with prefill workers: hello, the choice of a transport, then the hand-off's messages.

A prefill worker dials; each session serves one incarnation of it until either end closes it or its lease ends. See
"Sessions and timers" in docs/protocol.md."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from decode_svc.handoff.writers import Writers
from kvtransfer.transfer import Receiver
from mesh.messages.kv_messages import KvHello
from mesh.messages.message import Kv, Message
from mesh.messages.page_shape_checks import shape_problem
from mesh.network.interface import Stream, StreamClosed
from mesh.rules import Rules
from mesh.sessions.session import Session

log = logging.getLogger("baton.decode")

Choose = Callable[[KvHello, KvHello], tuple[str, str]]  # (decode, prefill) -> (transport or "", why)


@dataclass(slots=True)
class Peer:
    """A prefill worker that is connected."""

    incarnation: int
    transport: str
    session: Session
    over: asyncio.Event = field(default_factory=asyncio.Event)  # set when the end of its session was handled

    def send(self, message: Kv) -> None:
        self.session.send(message)


class PeerHost(Protocol):
    """The landings, as a session sees them."""

    def session_began(self, peer: Peer) -> None: ...

    def on_message(self, peer: Peer, message: Message) -> None: ...

    async def session_ended(self, peer: Peer) -> None: ...


class Sessions:
    def __init__(
        self,
        mine: KvHello,
        receivers: Mapping[str, Receiver],
        choose: Choose,
        *,
        rules: Rules,
        on_activity: Callable[[], None] = lambda: None,  # called before a message is handled
    ) -> None:
        self.receivers = receivers
        self.peers: dict[int, Peer] = {}  # incarnation -> its session, while it is connected
        self._known: dict[int, Peer] = {}  # the same, until the end of the session was handled
        self._mine = mine
        self._choose = choose
        self._rules = rules
        self._on_activity = on_activity
        self._writers = Writers()
        self._sessions: set[Session] = set()
        self._expired = 0  # sessions that ended because the prefill worker was silent

    async def serve(self, stream: Stream, host: PeerHost) -> None:
        """Serve one kv.v1 session, from hello to end."""
        try:
            async with asyncio.timeout(self._rules.lease_seconds):
                hello = await stream.receive()
        except (StreamClosed, TimeoutError):
            return
        if not isinstance(hello, KvHello):
            log.warning("%s began its session with %s instead of KvHello", stream.peer, type(hello).__name__)
            return
        chosen, why = "", shape_problem(hello.shape) if hello.shape is not None else ""
        why = why or self._writers.problem(hello)
        if not why:
            await self._replace(hello.incarnation)
            chosen, why = self._choose(self._mine, hello)
        handle = self.receivers[chosen].handle(hello.incarnation) if chosen else b""
        session = Session(stream, rules=self._rules, name=f"prefill {stream.peer}", on_activity=self._on_activity)
        session.send(replace(self._mine, chosen=chosen, why=why, handle=handle))
        if not chosen:
            log.error("refused prefill worker %s: %s", stream.peer, why)
            await asyncio.sleep(self._rules.heartbeat_seconds)  # let the answer arrive before the stream ends
            session.close()
            return
        peer = self.peers[hello.incarnation] = self._known[hello.incarnation] = Peer(hello.incarnation, chosen, session)
        self._sessions.add(session)
        host.session_began(peer)
        try:
            await session.run(lambda message: host.on_message(peer, message))
        finally:
            self._sessions.discard(session)
            self._expired += session.expired
            if self.peers.get(peer.incarnation) is peer:
                del self.peers[peer.incarnation]
            await self._end(peer, host)

    async def _end(self, peer: Peer, host: PeerHost) -> None:
        try:
            await host.session_ended(peer)
        finally:
            del self._known[peer.incarnation]
            peer.over.set()

    async def _replace(self, incarnation: int) -> None:
        """A prefill worker has one session at a time: a newer one ends the older one, and begins when everything that
        follows from that end is done. Otherwise the end of the older one, perhaps noticed a lease later, fences the
        landings of the newer one."""
        while (older := self._known.get(incarnation)) is not None:
            log.info("prefill worker %x dials again: its older session ends first", incarnation)
            older.session.close()
            await older.over.wait()

    def known(self, incarnation: int) -> Peer | None:
        """This prefill worker's session, while it is connected and while the end of the session is handled."""
        return self._known.get(incarnation)

    def send(self, incarnation: int, message: Kv) -> None:
        """Send a message to this prefill worker if it is connected."""
        if peer := self.peers.get(incarnation):
            peer.send(message)

    def counts(self) -> dict[str, int]:
        """Sessions now and those whose lease expired; connections of writers that were refused, by transport and
        reason."""
        return {"sessions_prefill": len(self._sessions), "expired_prefill": self._expired} | {
            f"refused_{name}_{reason}": count
            for name, receiver in self.receivers.items()
            for reason, count in {"token": 0, **receiver.refused}.items()
        }

    def close(self) -> None:
        for session in sorted(self._sessions, key=lambda each: each.name):
            session.close()
