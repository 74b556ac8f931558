"""Quarantine: pages that a one-sided writer may still write wait here for proof, however long it takes.

See "Page of the decode pool" in docs/protocol.md. Proof is Quiet of the writer's incarnation, Commit of the landing's
round (decode_svc/handoff/landings.py), the death of the writer's process by its pidfd, or over RDMA the end of the
session's key. A writer that sends nothing at all for the lease and `PATIENCE_SECONDS`, though decode asks every
heartbeat, is killed; not one that gave its session up while this worker was stopped, since it can answer only once it
dials again, nor any while this worker has no session with anybody: then it is itself out of reach. Where killing is not
possible, or where the writer lives and only a write of it does not end, the pages stay quarantined, are counted and
raise an alarm in the log. Timers start moves; none is proof."""

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass

from decode_svc.handoff.sessions import Peer, Sessions
from decode_svc.request.requests import DecodeHost, PageOwner
from engine.pool.ledger import Holder
from engine.pool.pages import PagePool, PageState
from kvtransfer.transfer import Receiver
from mesh.messages.kv_messages import Abort
from mesh.rules import Rules

log = logging.getLogger("baton.decode")

PATIENCE_SECONDS = 5.0  # beyond the lease, until a silent writer is killed


@dataclass(frozen=True, slots=True)
class QuarantinedLanding:
    """The pages of a landing that ended without proof."""

    pages: tuple[int, ...]
    why: str  # how the landing ended
    since_seconds: float


class Quarantine:
    def __init__(self, pages: PagePool, sessions: Sessions, *, host: DecodeHost, rules: Rules) -> None:
        self._pages = pages
        self._sessions = sessions
        self._host = host
        self._rules = rules
        self._held: dict[PageOwner, QuarantinedLanding] = {}
        self._since: dict[PageOwner, float] = {}  # when this worker began to wait for the owner's proof
        self._met: dict[int, Peer] = {}  # writer that owes a proof -> its last session
        self._beyond_reach: set[int] = set()  # writers that could not be killed
        self._warned: set[PageOwner] = set()  # the log tells that their proof is late
        self._slow: set[PageOwner] = set()  # their writers live, and may never send the proof that they owe
        self._added = 0  # pages that went into quarantine since the start
        self._task: asyncio.Task[None] | None = None

    @property
    def stuck_pages(self) -> int:
        """Pages whose writer gives no proof and is not killed: no worker can release them."""
        return self._pages.quarantined(self._is_stuck) if self._beyond_reach or self._slow else 0

    def needs_proof(self, receiver: Receiver) -> bool:
        """Rule [quarantine]: pages of a landing that ended wait for proof where the writer reaches them by itself.
        Otherwise a late write changes a page that belongs to another request by then."""
        return receiver.one_sided

    def add(self, owner: PageOwner, pages: tuple[int, ...], why: str) -> None:
        """Quarantine the pages of a landing that ended without proof; `why`: how it ended."""
        self._pages.quarantine(pages)
        self._added += len(pages)
        if (peer := self._sessions.known(owner.writer)) is not None:
            self._met[owner.writer] = peer
        if pages:
            earlier = self._held[owner].pages if owner in self._held else ()
            self._held[owner] = QuarantinedLanding(earlier + pages, why, asyncio.get_running_loop().time())
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def prove(self, proven: Callable[[PageOwner], bool]) -> None:
        """Free the pages of every owner that `proven` accepts: its writer can write no more of this ticket."""
        writers = {owner.writer for owner in self.owners() if proven(owner)}
        if self._pages.prove(lambda owner: isinstance(owner, PageOwner) and proven(owner)):
            self._held = {owner: held for owner, held in self._held.items() if not proven(owner)}
            self._beyond_reach -= writers
            self._forget()
            self._host.wake()

    def _forget(self) -> None:
        """Keep nothing of owners whose pages are free, and of writers that owe no proof any more."""
        self._since = {owner: since for owner, since in self._since.items() if owner in self._held}
        self._warned &= self._held.keys()
        self._slow &= self._held.keys()
        writers = {owner.writer for owner in self._held}
        self._met = {writer: peer for writer, peer in self._met.items() if writer in writers}
        self._beyond_reach &= writers

    def ask_again(self, peer: Peer) -> None:
        """Rule [requiet]: decode repeats Abort for every page that still waits for this writer. Otherwise a Quiet that
        was lost with its session is never sent again, and the page stays quarantined for ever."""
        for owner in self.owners_awaiting(peer.incarnation):
            peer.send(Abort(owner.ticket))

    def owners(self) -> list[PageOwner]:
        return list(self._held)

    def holders(self) -> Iterator[Holder]:
        """The pages of each writer, for the worker's ledger."""
        for owner, held in self._held.items():
            ticket, state = owner.ticket, PageState.QUARANTINED
            what = ("quarantine", held.pages, state, ticket.request, ticket.attempt, owner.writer)
            yield Holder(*what, held.why, held.since_seconds)

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
            alone = (
                not self._sessions.peers and not self._host.attached
            )  # nobody hears it: it may be replaced or cut off
            if now - due > self._rules.late_seconds or alone:
                self._since = dict.fromkeys(self._since, now)  # it was stopped, or is alone: it judges no writer yet
            self._since = {owner: self._since.get(owner, now) for owner in owners}
            for writer in sorted({owner.writer for owner in owners}):
                transport = next(owner.transport for owner in owners if owner.writer == writer)
                await self._judge(writer, self._sessions.receivers[transport])
            due = loop.time() + self._rules.heartbeat_seconds
            await asyncio.sleep(self._rules.heartbeat_seconds)

    async def _judge(self, writer: int, receiver: Receiver) -> None:
        now, patience = asyncio.get_running_loop().time(), self._rules.lease_seconds + PATIENCE_SECONDS
        if (peer := self._sessions.peers.get(writer)) is not None:
            self._met[writer] = peer
            self.ask_again(peer)  # the writer is connected, yet has not answered
        if await receiver.silent(writer, 0.0):
            self.prove(lambda owner: owner.writer == writer)
            return
        if not (owed := [since for owner, since in self._since.items() if owner.writer == writer]):
            return  # the proofs came meanwhile
        self._warn(writer, self._owed_for(writer, self._rules.lease_seconds), now)
        gave_up = (peer := self._met.get(writer)) is not None and peer.session.given_up
        if now - self._silent_since(writer, min(owed)) > patience and not gave_up:
            self._end(writer, receiver)
        else:
            self._report_slow(writer, self._owed_for(writer, patience))

    def _owed_for(self, writer: int, seconds: float) -> set[PageOwner]:
        """Owners for whose proof this worker has waited longer. A writer whose other proofs come meanwhile does not
        owe these any less."""
        before = asyncio.get_running_loop().time() - seconds
        return {owner for owner in self.owners_awaiting(writer) if self._since.get(owner, before) < before}

    def _warn(self, writer: int, late: set[PageOwner], now: float) -> None:
        """Tell a person once of each proof that is late."""
        if new := late - self._warned:
            self._warned |= new
            found, seconds = [self._held[owner] for owner in new], now - min(self._since[owner] for owner in new)
            pages, why = sum(len(held.pages) for held in found), ", ".join(sorted({held.why for held in found}))
            text = "%d pages are quarantined (%s): prefill process %x owes their proof for %.1f s; see `baton pages`"
            log.warning(text, pages, why, writer, seconds)

    def _silent_since(self, writer: int, owes_since: float) -> float:
        """When the writer fell silent: it owes an answer since then, and no message of it has come, not even a
        heartbeat. A process that sends anything lives: its other requests are not to die with one stuck write."""
        peer = self._met.get(writer)
        return owes_since if peer is None else max(owes_since, peer.session.heard_seconds)

    def _end(self, writer: int, receiver: Receiver) -> None:
        """Kill the process of a silent writer, where that is possible."""
        if writer in self._beyond_reach:
            return
        pages = self._pages_of(self.owners_awaiting(writer))
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

    def _report_slow(self, writer: int, late: set[PageOwner]) -> None:
        """Raise the alarm, once, for a writer that lives and does not prove that a write is over."""
        if new := late - self._slow:
            self._slow |= new
            text = "%d pages stay quarantined: prefill process %x lives, but a write of it does not end; restart it"
            log.error(text, self._pages_of(new), writer)
            self._host.wake()

    def _pages_of(self, owners: Collection[PageOwner]) -> int:
        return self._pages.quarantined(lambda owner: owner in owners)

    def counts(self) -> dict[str, int]:
        """Pages that went into quarantine since the start, and those that no worker can release now."""
        return {"quarantined": self._added, "stuck": self.stuck_pages}

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _is_stuck(self, owner: Hashable) -> bool:
        return isinstance(owner, PageOwner) and (owner.writer in self._beyond_reach or owner in self._slow)
