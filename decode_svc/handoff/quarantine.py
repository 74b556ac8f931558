"""Quarantine: pages that a one-sided writer may still write wait here for proof, however long it takes.

See "Page of the decode pool" in docs/protocol.md. Proof is Quiet of the writer's incarnation, Commit of the landing's
round (decode_svc/handoff/landings.py), or the death of the writer's process by its pidfd. A writer that itself answers
nothing for the lease and `PATIENCE_SECONDS`, though decode asks every heartbeat, is killed. Where that is not possible,
its pages stay quarantined, are counted and raise an alarm in the log. Timers start moves; none is proof."""

import asyncio
import logging
from collections.abc import Callable, Hashable

from decode_svc.handoff.sessions import Peer, Sessions
from decode_svc.requests import DecodeHost, PageOwner
from engine.pages import PagePool
from kvtransfer.transfer import Receiver
from mesh.messages import Abort
from mesh.rules import Rules

log = logging.getLogger("baton.decode")

PATIENCE_SECONDS = 5.0  # beyond the lease, until a silent writer is killed


class Quarantine:
    def __init__(self, pages: PagePool, sessions: Sessions, *, host: DecodeHost, rules: Rules) -> None:
        self._pages, self._sessions, self._host, self._rules = pages, sessions, host, rules
        self._since: dict[PageOwner, float] = {}  # when this worker began to wait for the owner's proof
        self._answered: dict[int, float] = {}  # writer -> when it last gave a proof
        self._beyond_reach: set[int] = set()  # writers that could not be killed
        self._added = 0  # pages that went into quarantine since the start
        self._task: asyncio.Task[None] | None = None

    @property
    def stuck_pages(self) -> int:
        """Pages whose writer is silent and cannot be killed: no worker can release them."""
        return self._pages.quarantined(self._is_beyond_reach) if self._beyond_reach else 0

    def needs_proof(self, receiver: Receiver) -> bool:
        """Rule [quarantine]: pages of a landing that ended wait for proof where the writer reaches them by itself.
        Otherwise a late write changes a page that belongs to another request by then."""
        return receiver.one_sided

    def add(self, pages: tuple[int, ...]) -> None:
        """Quarantine the pages of a landing that ended without proof."""
        self._pages.quarantine(pages)
        self._added += len(pages)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def prove(self, proven: Callable[[PageOwner], bool]) -> None:
        """Free the pages of every owner that `proven` accepts: its writer can write no more. It has answered, so it is
        not silent."""
        writers = {owner.writer for owner in self.owners() if proven(owner)}
        if self._pages.prove(lambda owner: isinstance(owner, PageOwner) and proven(owner)):
            self._answered.update(dict.fromkeys(writers, asyncio.get_running_loop().time()))
            self._beyond_reach -= writers
            self._host.wake()

    def ask_again(self, peer: Peer) -> None:
        """Rule [requiet]: decode repeats Abort for every page that still waits for this writer. Otherwise a Quiet that
        was lost with its session is never sent again, and the page stays quarantined for ever."""
        for owner in self.owners_awaiting(peer.incarnation):
            peer.send(Abort(owner.ticket))

    def owners(self) -> list[PageOwner]:
        return [owner for owner in self._pages.quarantined_owners() if isinstance(owner, PageOwner)]

    def owners_awaiting(self, writer: int) -> list[PageOwner]:
        """Rule [incarnation]: Abort for a page goes only to the process that may write it. A process that was started
        at the same address knows nothing of its writes."""
        return [owner for owner in self.owners() if owner.writer == writer]

    async def _watch(self) -> None:
        """Judge every writer once a heartbeat, until no page is left."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while owners := self.owners():
            now = loop.time()
            if now - due > self._rules.late_seconds:
                self._since = dict.fromkeys(self._since, now)  # this process was stopped: it judges no writer yet
            self._since = {owner: self._since.get(owner, now) for owner in owners}
            for writer in sorted({owner.writer for owner in owners}):
                transport = next(owner.transport for owner in owners if owner.writer == writer)
                await self._judge(writer, self._sessions.receivers[transport])
            due = loop.time() + self._rules.heartbeat_seconds
            await asyncio.sleep(self._rules.heartbeat_seconds)
        self._since.clear()
        self._answered.clear()
        self._beyond_reach.clear()

    async def _judge(self, writer: int, receiver: Receiver) -> None:
        now = asyncio.get_running_loop().time()
        if (peer := self._sessions.peers.get(writer)) is not None:
            self.ask_again(peer)  # the writer is connected, yet has not answered
        if await receiver.silent(writer, 0.0):
            self.prove(lambda owner: owner.writer == writer)
        elif now - self._silent_since(writer) > self._rules.lease_seconds + PATIENCE_SECONDS:
            self._end(writer, receiver)

    def _silent_since(self, writer: int) -> float:
        """When the writer fell silent: it owes an answer since then and has given none, for whichever ticket. A writer
        that answers lives, however often requests of it are cancelled."""
        owed = min(since for owner, since in self._since.items() if owner.writer == writer)
        return max(owed, self._answered.get(writer, owed))

    def _end(self, writer: int, receiver: Receiver) -> None:
        """Kill the process of a silent writer, where that is possible."""
        if writer in self._beyond_reach:
            return
        pages = self._pages.quarantined(lambda owner: isinstance(owner, PageOwner) and owner.writer == writer)
        if receiver.kill(writer):
            log.warning("killed prefill process %x: silent while %d pages wait for its proof", writer, pages)
            return
        self._beyond_reach.add(writer)
        log.error(
            "%d pages stay quarantined: prefill process %x is silent and may not be killed; resume or end it",
            pages,
            writer,
        )
        self._host.wake()

    def counts(self) -> dict[str, int]:
        """Pages that went into quarantine since the start, and those that no worker can release now."""
        return {"quarantined": self._added, "stuck": self.stuck_pages}

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _is_beyond_reach(self, owner: Hashable) -> bool:
        return isinstance(owner, PageOwner) and owner.writer in self._beyond_reach
