"""Fuzz target of decode's half of kv.v1: a prefill worker sends any message, in any order, for any ticket.

Two prefill workers are connected; each case sends what one of them may draw, over the codec. A message is refused by
BadMessage or changes only what its sender may change: no page of another writer's landing moves, a request runs only
on pages whose checksums its own writer has stated rightly, the page states add up, and no message writes a byte."""

from random import Random
from typing import Any, cast

from decode_svc.handoff.landings import Landings
from decode_svc.handoff.sessions import Peer
from decode_svc.request.requests import DecodePhase, PageOwner
from engine.pool.pages import PageState
from mesh.messages.codec import KV_OUT
from mesh.messages.jobs import Ticket, Token
from mesh.messages.kv_messages import Commit, Computing, KvHello, Quiet, Ready, Written
from mesh.messages.message import Heartbeat, Message
from mesh.sessions.session import BadMessage
from tests.fuzz.case_loop import CaseLoop, case_loop
from tests.fuzz.cases import ODD_INTS, Wrong, chance
from tests.fuzz.drawn_messages import drawn, odd, over_the_wire
from tests.fuzz.guarded_pool import GuardedPool
from tests.unit.decode_svc.fakes import PAGE, SHAPE, FakeSession, Surroundings

PAGES, OTHER = 8, 78
_POOL: list[GuardedPool] = []


class FuzzedDecode:
    """Decode's landings with three open requests and two prefill workers."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.around = rng, Surroundings(pages=PAGES, one_sided=chance(rng, 0.6))
        self.pool = _POOL[0] if _POOL else GuardedPool(SHAPE, PAGES)
        _POOL[:] = [self.pool]
        self.pool.reset()
        self.around.pool = cast(Any, self.pool)
        around = self.around
        self.peers = [around.peer, Peer(OTHER, "fake", cast(Any, FakeSession()))]
        around.sessions.peers[OTHER] = self.peers[1]
        self.tickets = [around.add(key, tokens=rng.choice((4, 8, 10))).ticket for key in (1, 2, 3)]
        self.landings = Landings(
            around.requests,
            around.pages,
            around.pool,
            around.sessions,
            around.room,
            host=around.host,
            rules=around.rules,
        )
        self.judged: set[int] = set()  # requests that run
        self.stated: dict[tuple[Ticket, int], set[int]] = {}  # layers of a page that its writer stated rightly

    # ---- messages

    def message(self, peer: Peer) -> Message:
        """Mostly what the landing of a ticket waits for, else any message of a prefill worker."""
        rng, ticket = self.rng, self.tickets[0] if chance(self.rng, 0.7) else self.rng.choice(self.tickets)
        request = self.around.requests.get(ticket.request)
        landing = request.landing if request is not None else None
        commit = Commit(ticket, landing.round if landing else 0, Token(0, 5) if chance(rng, 0.8) else None)
        if chance(rng, 0.6):
            if landing is None:
                return Ready(ticket)
            return commit if landing.complete else self._written(ticket)
        match rng.randrange(6):
            case 0:
                return commit
            case 1:
                return Quiet(ticket, rng.choice((peer.incarnation, peer.incarnation, OTHER, 1)))
            case 2:
                return Computing(ticket, rng.choice((1, *ODD_INTS[:9])))
            case 3:
                return cast(Message, drawn(rng, rng.choice((KvHello, Ready, Written, Commit, Quiet, Heartbeat))))
            case 4:
                return Ready(ticket)
            case _:
                return self._written(ticket)

    def _written(self, ticket: Ticket) -> Written:
        rng, request = self.rng, self.around.requests.get(ticket.request)
        landing = request.landing if request is not None else None
        first = rng.choice((0, 0, 0, 1))
        layers = SHAPE.layers - first
        if landing is None or not landing.pages:
            return Written(ticket, first, layers, 0, (0,), (1,))
        indexes = [landing.first_page + place for place in range(len(landing.pages)) if chance(rng, 0.8)]
        sums = [self.pool.checksum(landing.pages[index - landing.first_page], first, layers) for index in indexes]
        wrong = [value if chance(rng, 0.85) else rng.getrandbits(64) for value in sums]
        return Written(ticket, first, layers, landing.round, tuple(indexes), tuple(wrong))

    # ---- what must stay true

    def send(self, peer: Peer) -> bool:
        """One message of this peer; False: it was refused before or while it was handled."""
        message = self.message(peer)
        message = odd(self.rng, message) if chance(self.rng, 0.15) else message
        got = over_the_wire(self.rng, KV_OUT, message, broken=0.07)
        if got is None or isinstance(got, Heartbeat):
            return False
        known = {place: set(layers) for place, layers in self.stated.items()}
        if isinstance(got, Written):
            self._note(peer, got)
        before = self._of_others(peer)
        try:
            self.landings.on_message(peer, got)
        except BadMessage:
            self.stated = known
        if before != self._of_others(peer):
            raise Wrong(f"{got} of {peer.incarnation} moved another writer's pages from {before}")
        self.look()
        return True

    def _note(self, peer: Peer, written: Written) -> None:
        request = self.around.requests.get(written.ticket.request)
        landing = request.landing if request is not None else None
        layers = range(written.first_layer, min(written.first_layer + written.layers, 99))
        if landing is None or landing.writer != peer.incarnation or landing.ticket != written.ticket:
            return
        if written.layers < 1 or written.first_layer + written.layers > SHAPE.layers:
            return
        for index, checksum in zip(written.pages, written.checksums, strict=False):
            place = index - landing.first_page
            if 0 <= place < len(landing.pages):
                found = self.pool.checksum(landing.pages[place], written.first_layer, written.layers)
                known = self.stated.setdefault((landing.ticket, place), set())
                known.update(layers) if found == checksum else known.difference_update(layers)

    def _of_others(self, peer: Peer) -> list[tuple[int, PageState]]:
        """Pages that another writer may write, and their states."""
        pages, found = self.around.pages, list[tuple[int, PageState]]()
        for page in range(PAGES):
            owner = pages.owner(page)
            if isinstance(owner, PageOwner) and owner.writer != peer.incarnation:
                found.append((page, pages.state(page)))
        return found

    def look(self) -> None:
        counts = self.around.pages.counts()
        if counts.total != PAGES or counts.in_use < 0:
            raise Wrong(f"the page states do not add up: {counts}")
        for request in self.around.requests.values():
            if request.phase is DecodePhase.RUNNING and request.key not in self.judged:
                self.judged.add(request.key)
                if not set(request.produced) <= set(range(request.job.base, request.next_position)):
                    raise Wrong(f"request {request.key} has tokens at {list(request.produced)} of its answer")
                for place in range(request.filled // PAGE):
                    if len(self.stated.get((request.ticket, place), ())) != SHAPE.layers:
                        raise Wrong(f"request {request.key} runs on page {place}, which was never sound")


def kv_control(rng: Random) -> bool:
    """A case reaches deep states when a request was admitted from a landing."""
    with case_loop() as loop:
        case = FuzzedDecode(rng)
        for _ in range(rng.randint(4, 12)):
            peer = case.peers[0] if chance(rng, 0.85) else case.peers[1]
            case.send(peer)
            if chance(rng, 0.08):
                _end(rng, case, peer, loop)
        case.pool.check()
        case.landings.quarantine.close()
        return bool(case.judged)


def _end(rng: Random, case: FuzzedDecode, peer: Peer, loop: CaseLoop) -> None:
    """The session ends, or a gateway cancels a request."""
    if chance(rng, 0.5):
        loop.run(case.landings.session_ended(peer))
    else:
        request = case.around.requests.get(rng.choice(case.tickets).request)
        if request is not None and request.landing is not None:
            case.landings.fence(request)
            case.around.host.drop(request)
    case.look()
