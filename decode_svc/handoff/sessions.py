"""Decode's sessions with prefill workers: hello, the choice of a transport, then the hand-off's messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from kvtransfer.transfer import Receiver
from mesh.messages import Kv, KvHello, Message
from mesh.network import Stream, StreamClosed
from mesh.rules import Rules
from mesh.session import Session

log = logging.getLogger("baton.decode")

Choose = Callable[[KvHello, KvHello], tuple[str, str]]  # (decode, prefill) -> (transport or "", why)


@dataclass(slots=True)
class Peer:
    incarnation: int
    transport: str
    session: Session

    def send(self, message: Kv) -> None:
        self.session.send(message)


class Peers:
    def __init__(
        self,
        mine: KvHello,
        receivers: Mapping[str, Receiver],
        choose: Choose,
        *,
        rules: Rules,
        on_begin: Callable[[Peer], None],
        on_message: Callable[[Peer, Message], None],
        on_end: Callable[[Peer], Awaitable[None]],
    ) -> None:
        self._mine, self._receivers, self._choose, self._rules = mine, receivers, choose, rules
        self._on_begin, self._on_message, self._on_end = on_begin, on_message, on_end
        self._sessions: set[Session] = set()

    async def accept(self, stream: Stream) -> None:
        """Serves one kv.v1 session from hello to end."""
        try:
            hello = await asyncio.wait_for(stream.receive(), self._rules.lease_seconds)
        except (StreamClosed, TimeoutError):
            return
        if not isinstance(hello, KvHello):
            log.warning("%s began with %s, not KvHello", stream.peer, type(hello).__name__)
            return
        chosen, why = self._choose(self._mine, hello)
        handle = self._receivers[chosen].handle(hello.incarnation) if chosen else b""
        session = Session(stream, rules=self._rules, name=f"prefill {stream.peer}")
        session.send(replace(self._mine, chosen=chosen, why=why, handle=handle))
        if not chosen:
            log.error("refused prefill %s: %s", stream.peer, why)
            await asyncio.sleep(self._rules.heartbeat_seconds)  # let the answer arrive before the stream ends
            session.close()
            return
        peer = Peer(hello.incarnation, chosen, session)
        self._sessions.add(session)
        self._on_begin(peer)
        try:
            await session.run(lambda message: self._on_message(peer, message))
        finally:
            self._sessions.discard(session)
            await self._on_end(peer)

    def close(self) -> None:
        for session in list(self._sessions):
            session.close()
