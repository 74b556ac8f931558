"""What stands around one part of a decode worker in its unit tests: a host, prefill workers, gateways; all record."""

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from decode_svc.handoff.room import Room
from decode_svc.handoff.sessions import Peer, Sessions
from decode_svc.request.requests import DecodePhase, DecodeRequest
from engine.pool.bands import LayerBands
from engine.pool.horizon import Horizon
from engine.pool.pages import PagePool
from kvtransfer.memory import MemoryPool
from kvtransfer.transfer import Arrived, FrameBegins, every_frame
from mesh.messages.jobs import Job, Reason, Sampling, Ticket
from mesh.messages.kv_messages import KvHello
from mesh.messages.message import Message
from mesh.messages.page_shape import opaque_pages
from mesh.rules import RULES, Rules
from mesh.sessions.session import Session

PAGE = 4  # tokens
SHAPE = opaque_pages((2, PAGE * 8), content="fake")
WRITER = 77  # incarnation of the prefill worker
KV_HELLO = KvHello(1, "class a", SHAPE, "host", 0, 0, transports=("fake",))

WAY = {
    DecodePhase.OPEN: (),
    DecodePhase.LOCAL: (),
    DecodePhase.LANDING: (DecodePhase.LANDING,),
    DecodePhase.RUNNING: (DecodePhase.LANDING, DecodePhase.RUNNING),
    DecodePhase.LOST: (DecodePhase.LANDING, DecodePhase.LOST),
    DecodePhase.ENDED: (DecodePhase.ENDED,),
}


class FakeHost:
    def __init__(self, requests: dict[int, DecodeRequest]) -> None:
        self.running: list[DecodeRequest] = []
        self.reported: list[tuple[int, Reason]] = []
        self.starving: list[DecodeRequest] = []
        self.dropped: list[DecodeRequest] = []
        self.wakes, self.attached = 0, True
        self._requests = requests

    def admitted(self, request: DecodeRequest) -> None:
        self.running.append(request)

    def lost(self, request: DecodeRequest, reason: Reason, detail: str = "") -> None:
        self.reported.append((request.key, reason))

    def starved(self, request: DecodeRequest) -> None:
        self.starving.append(request)

    def drop(self, request: DecodeRequest) -> None:
        self.dropped.append(self._requests.pop(request.key))
        request.enter(DecodePhase.ENDED)

    def wake(self) -> None:
        self.wakes += 1


class FakeSession:
    """The way to a gateway or a prefill worker; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.heard_seconds = 0.0  # when the last message came from there
        self.given_up = False  # the other end closed it while this one was stopped

    def send(self, message: Message) -> None:
        self.sent.append(message)


class FakeReceiver:
    name = "fake"

    def __init__(self, *, one_sided: bool = True) -> None:
        self.one_sided, self.refused = one_sided, Counter[str]()
        self.open_tickets: dict[bytes, dict[int, int]] = {}
        self.arrived: Callable[[Arrived], None] | None = None
        self.begins: FrameBegins = every_frame
        self.dead, self.may_kill, self.killed = False, True, list[int]()

    def handle(self, writer: int) -> bytes:
        return b"handle %d" % writer

    def open(
        self,
        ticket: bytes,
        pages: dict[int, int],
        arrived: Callable[[Arrived], None],
        begins: FrameBegins = every_frame,
    ) -> None:
        self.open_tickets[ticket], self.arrived, self.begins = pages, arrived, begins

    def close(self, ticket: bytes) -> None:
        self.open_tickets.pop(ticket, None)

    async def silent(self, writer: int, seconds: float) -> bool:
        return self.dead or not self.one_sided

    def kill(self, writer: int) -> bool:
        self.killed.append(writer)
        return self.may_kill

    async def aclose(self) -> None:
        pass


class Surroundings:
    """Pool, sessions and host of one part under test, with one prefill worker connected."""

    def __init__(
        self,
        *,
        pages: int = 16,
        one_sided: bool = True,
        rules: Rules = RULES,
        max_batch: int = 8,
        window: int = 0,
        bands: LayerBands | None = None,  # None: one, with this window
    ) -> None:
        self.requests: dict[int, DecodeRequest] = {}
        self.host, self.rules = FakeHost(self.requests), rules
        bands = bands or LayerBands(window)
        self.pool, self.pages = MemoryPool(SHAPE, pages), PagePool(pages, bands=bands)
        self.receiver = FakeReceiver(one_sided=one_sided)
        self.sessions = Sessions(KV_HELLO, {"fake": self.receiver}, lambda mine, theirs: ("fake", ""), rules=rules)
        self.prefill = FakeSession()
        self.peer = self.sessions.peers[WRITER] = Peer(WRITER, "fake", cast(Session, self.prefill))
        self.room = Room(
            self.requests,
            self.pages,
            horizon=Horizon.of(bands, PAGE),
            chunk_tokens=8,
            numerics="class a",
            max_batch=max_batch,
            overtakes=rules.overtakes,
        )

    def add(self, key: int, **more: Any) -> DecodeRequest:
        one = self.requests[key] = request(key, **more)
        return one

    @property
    def sent_names(self) -> list[str]:
        """Names of the messages that prefill got."""
        return [type(message).__name__ for message in self.prefill.sent]


def job(key: int, *, tokens: int = 8, attempt: int = 1, max_tokens: int = 16, **more: Any) -> Job:
    prompt = tuple(range(key * 100, key * 100 + tokens))
    return Job(Ticket(key, attempt, bytes([attempt]) * 16), prompt, (), Sampling(max_tokens=max_tokens), **more)


def request(
    key: int,
    *,
    opened: float = 0.0,
    tokens: int = 8,
    phase: DecodePhase = DecodePhase.OPEN,
    max_tokens: int = 16,
    gateway: Any = None,
    **more: Any,
) -> DecodeRequest:
    """A request that has made its way to a phase."""
    mine = job(key, tokens=tokens, max_tokens=max_tokens)
    prefill = None if phase is DecodePhase.LOCAL else WRITER
    one = DecodeRequest(mine, gateway or FakeSession(), opened, opened, list(mine.tokens), prefill, **more)
    for step in WAY[phase]:
        one.enter(step)
    return one
