"""Pages that a one-sided writer may still write: they wait here for proof, however long it takes.

Proof is Quiet or Commit from that very incarnation (landings.py), or the writer's process dead by its pidfd. A writer
that stays silent, or has no session, is killed after the lease and some more; where that is not possible its pages stay
quarantined, counted and alarmed. Timers start moves; none of them is proof."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping

from decode_svc.handoff.sessions import Peer
from decode_svc.requests import PageOwner
from engine.pages import PagePool
from kvtransfer.transfer import Receiver
from mesh.messages import Abort
from mesh.rules import Rules

log = logging.getLogger("baton.decode")


class Quarantine:
    def __init__(
        self,
        pages: PagePool,
        receivers: Mapping[str, Receiver],
        peers: Mapping[int, Peer],
        rules: Rules,
        changed: Callable[[], None],  # pages came back, or it turned out that they may not
    ) -> None:
        self._pages, self._receivers, self._peers, self._rules = pages, receivers, peers, rules
        self._changed = changed
        self._since: dict[int, float] = {}  # writer -> when its first page came here
        self._beyond_reach: set[int] = set()  # writers that could not be killed
        self._task: asyncio.Task[None] | None = None

    @property
    def owners(self) -> list[PageOwner]:
        return [owner for owner in self._pages.quarantined_owners() if isinstance(owner, PageOwner)]

    @property
    def stuck_pages(self) -> int:
        """Pages that nobody may ever prove."""
        return self._pages.quarantined(self._out_of_reach) if self._beyond_reach else 0

    def _out_of_reach(self, owner: Hashable) -> bool:
        return isinstance(owner, PageOwner) and owner.writer in self._beyond_reach

    def session_began(self, peer: Peer) -> None:
        """A new session with a writer: ask again for every page that still waits for it."""
        if self._rules.requiet:
            for owner in self.owners:
                if owner.writer == peer.incarnation or not self._rules.incarnation:
                    peer.send(Abort(owner.ticket))

    def prove(self, proven: Callable[[PageOwner], bool]) -> None:
        """No write of these owners can still come: their pages are free."""
        if self._pages.prove(lambda owner: isinstance(owner, PageOwner) and proven(owner)):
            self._changed()

    def watch(self) -> None:
        """Pages came: look after them until none is left."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_after())

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while owners := self.owners:
            now = loop.time()
            if now - due > self._rules.late_seconds:
                self._since = dict.fromkeys(self._since, now)  # this end was stopped: nobody else is judged
            for writer in sorted({owner.writer for owner in owners}):
                transport = next(owner.transport for owner in owners if owner.writer == writer)
                await self._judge(writer, self._receivers[transport], self._since.setdefault(writer, now))
            due = loop.time() + self._rules.heartbeat_seconds
            await asyncio.sleep(self._rules.heartbeat_seconds)
        self._since.clear()
        self._beyond_reach.clear()

    async def _judge(self, writer: int, receiver: Receiver, since: float) -> None:
        now = asyncio.get_running_loop().time()
        if (peer := self._peers.get(writer)) is not None:
            self.session_began(peer)  # asks again; it is connected, yet has not answered
        if await receiver.silent(writer, 0.0):
            self.prove(lambda owner: owner.writer == writer)
        elif now - since > self._rules.lease_seconds + 5.0 and writer not in self._beyond_reach:
            pages = self._pages.counts().quarantined
            if receiver.kill(writer):
                log.warning("killed prefill process %x: silent while %d pages wait for its proof", writer, pages)
            else:
                self._beyond_reach.add(writer)
                log.error(
                    "%d pages stay quarantined: prefill process %x is silent and may not be killed; resume or end it",
                    pages,
                    writer,
                )
                self._changed()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
